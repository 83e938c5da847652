"""One attempt's ranks, as threads of one process, and the directory that they train in."""

import json
import math
import os
import threading
import time

from gang import Board, Exchange

from pitcrew_torch import checkpoint, custody, identity, saver

KEEP = 2
SECONDS = 60  # a case that takes longer hangs


class Broken(Exception):
    """The property does not hold."""


def run_of(attempt):
    return identity.Run({"PITCREW_JOB_UID": "job", "PITCREW_ATTEMPT": str(attempt), "PITCREW_ATTEMPT_BY": "agent"})


def content(step, rank):
    return (b"step %d of rank %d " % (step, rank)) * 50


class Gang:
    """One attempt's ranks on a directory."""

    def __init__(self, root, world, attempt, fenced, faulty=False):
        self.root, self.world, self.attempt, self.faulty = root, world, attempt, faulty
        self.fenced, self.trouble, self.notes = fenced, [], []
        self._run = run_of(attempt)
        self._board = Board(world, timeout=SECONDS / 2)
        self.custodies = [self._custody(rank) for rank in range(world)]
        self.savers = [self._saver(rank) for rank in range(world)]
        self.loaded = None

    def _custody(self, rank):
        exchange = Exchange(self._board, rank)
        return custody.Custody(
            self.root,
            self._run,
            lambda: (rank, self.world),
            lambda: exchange,
            self.notes.append,
            lambda: 0,
            self.fenced,
        )

    def _saver(self, rank):
        s = saver.Saver(
            self.root, self._save, rank, self.world, self.attempt, KEEP, lambda *_: None, self.trouble.append,
            own=self.custodies[rank].own, fenced=self.fenced, note=self.notes.append,
        )  # fmt: skip
        s.faulty, s.others_idle = self.faulty, math.inf
        return s

    def _save(self, context):
        with context.open("rank-%d.state" % context.rank) as f:
            f.write(content(context.step, context.rank))

    def each(self, lib, act):
        """act(rank) on a thread for each rank; [what it raised or gave]."""
        out = [None] * self.world

        def one(rank):
            lib.fault_rank(rank if self.faulty else -1)
            try:
                out[rank] = act(rank)
            except Exception as error:
                out[rank] = error

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            if thread.is_alive():
                raise Broken("a rank hangs")
        return out

    def resume(self, lib, read_only=False):
        """The manifest that all ranks loaded, or the exception that all ranks raised."""

        def act(rank):
            return self.custodies[rank].resume(
                lambda context: self._load(lib, context), lambda m: True, False, read_only
            )

        out = self.each(lib, act)
        said = {json.dumps(o, sort_keys=True) if isinstance(o, dict) else repr(o) for o in out}
        if len(said) != 1:
            raise Broken("the ranks resumed differently: %s" % said)
        return out[0]

    def _load(self, lib, context):
        lib.fault_rank(-1)  # what load_fn does is the user's
        with open(os.path.join(context.directory, "rank-%d.state" % context.rank), "rb") as f:
            if f.read() != content(context.step, context.rank):
                raise Broken("rank %d loaded something else than was saved at step %d" % (context.rank, context.step))
        lib.fault_rank(context.rank if self.faulty else -1)

    def periodic(self, lib, step):
        """True once the checkpoint is complete."""
        self.each(lib, lambda rank: self.savers[rank].periodic(step))
        for s in self.savers[1:]:
            s.wait(SECONDS)
        self.savers[0].others_idle = time.monotonic()  # rank 0 assembles what is there now, and waits for no more
        self.savers[0].wait(SECONDS)
        self.savers[0].others_idle = math.inf
        return self.complete(step)

    @staticmethod
    def given_up(s, save, looked):
        """In place of saver.Saver._given_up, which waits ten times as long as the save took. Of 8 ranks on a busy
        machine that is longer than a case may take."""
        return looked >= s.others_idle

    def round(self, lib, step):
        saved = self.each(lib, lambda rank: self.savers[rank].asked(step, ()))
        if any("error" in m for m in saved):
            return False
        files = [dict(f, rank=rank) for rank, m in enumerate(saved) for f in m["files"]]
        about = {"req": "r", "step": step, "dir": saved[0]["dir"], "world_size": self.world, "files": files}
        writer = self.world - 1
        answers = self.each(lib, lambda rank: self.savers[rank].manifest(about) if rank == writer else {})
        return "crc32" in answers[writer]

    def complete(self, step):
        names = [n for n in os.listdir(self.root) if n.startswith("step-%d.attempt-%d" % (step, self.attempt))]
        return any(os.path.exists(os.path.join(self.root, n, checkpoint.MANIFEST)) for n in names)

    def end(self):
        for c in self.custodies:
            c.end()


def prepare(root, world, lib):
    """Steps 10 and 20 complete, 30 complete and damaged, 35 cut short; all of attempt 1."""
    gang = Gang(root, world, 1, lambda error: None)
    gang.resume(lib)
    for step in (10, 20):
        assert gang.periodic(lib, step)
    for s in gang.savers:
        s._keep = 3
    assert gang.periodic(lib, 30)
    gang.each(lib, lambda rank: gang.savers[rank].asked(35, ()))
    gang.end()
    path = os.path.join(root, "step-30.attempt-1", "rank-%d.state" % (world - 1))
    with open(path, "r+b") as f:
        f.seek(7)
        f.write(b"\xff")


def listing(root):
    found = {}
    for base, _, files in os.walk(root):
        for name in files:
            with open(os.path.join(base, name), "rb") as f:
                found[os.path.relpath(os.path.join(base, name), root)] = f.read()
        found[os.path.relpath(base, root)] = None
    return found


def manifests(root):
    """Checkpoints of attempt 2 that are complete."""
    return sorted(
        n for n in os.listdir(root) if ".attempt-2" in n and os.path.exists(os.path.join(root, n, checkpoint.MANIFEST))
    )
