"""Faults in every file call of saver, chooser, claims and prune; afterward no complete checkpoint may be lost.

    python3 python/tests/faults/driver.py --cases 5000

One case: a gang of 1, 2 or 8 ranks (threads) runs an attempt on a copy of a prepared directory. One file call of one of
its threads fails (once or from then on), crashes the process, finds the disk full, or stalls while a later attempt
claims the directory and saves. Then, without faults, a new attempt resumes. It must find the newest checkpoint that was
complete before, or a later one, with its content. fault.c is preloaded and makes the real calls fail; each case is a
fork."""

import argparse
import collections
import ctypes
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", ".."), os.path.join(HERE, "..")]

from gang import Board, Exchange  # noqa: E402

from pitcrew_torch import checkpoint, claims, custody, identity, saver, storage  # noqa: E402

ERROR, CRASH, FULL, STALL = 1, 2, 3, 4
FOREVER = 1 << 30
TRIES = 3  # of a file call, see speed_up: an error that often outlasts the retry and nothing else
ERRNOS = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES, errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
PASSING = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES, errno.ENOENT)  # those that a retry has to survive
KEEP = 2
FENCED, CRASHED = 76, 99
SECONDS = 60  # a case that takes longer hangs


class Case(collections.namedtuple("Case", "scenario world thread call kind number times")):
    def __str__(self):
        how = {ERROR: "error", CRASH: "crash", FULL: "disk full", STALL: "stall"}[self.kind]
        if self.kind == ERROR:
            how = "%s %s" % (errno.errorcode[self.number], {1: "once", TRIES: "thrice"}.get(self.times, "from then on"))
        text = "%s, %d ranks, thread %d, call %d, %s" % (self.scenario, self.world, self.thread, self.call, how)
        return "%s (--one %s)" % (text, ",".join(map(str, self)))


class Broken(Exception):
    """The property does not hold."""


# ---- the gang under test. Threads have numbers for the shim: rank r is r, its second thread 16 + r, the heartbeat 40.


def shim():
    lib = ctypes.CDLL(os.environ["LD_PRELOAD"])
    lib.fault_name.restype = ctypes.c_char_p
    return lib


def number_threads(lib):
    """Give the threads that the package starts their numbers."""
    finish, beat = saver.Saver._finish_all, custody.Heartbeat.run

    def finish_all(self):
        lib.fault_rank(16 + self._rank if self.faulty else -1)
        finish(self)

    def run(self):
        lib.fault_rank(40 if self._owner.faulty else -1)
        beat(self)

    saver.Saver._finish_all, custody.Heartbeat.run = finish_all, run
    saver.Saver.faulty = custody.Owner.faulty = False


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
        s.faulty = self.faulty
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
        for s in self.savers:
            s.wait(SECONDS)
        return self.complete(step)

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


# ---- what is there before


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


# ---- one case


def attempt(case, root, lib, say):
    """The child: attempt 2 under the fault. say(text, value) reaches the parent also if the process dies next."""

    def fenced(error):
        if lib.fault_stalled():
            done.wait(SECONDS)  # in truth the later attempt is another process
        say("fenced", str(error))
        os._exit(FENCED)

    done = threading.Event()

    gang = Gang(root, case.world, 2, fenced, faulty=True)
    lib.fault_arm(root.encode(), case.kind, case.number, case.call, case.thread, case.times)
    if case.kind == STALL:
        threading.Thread(target=succeed, args=(case, root, lib, say, done), daemon=True).start()
    got = gang.resume(lib, read_only=case.scenario == "reader")
    if isinstance(got, Exception):
        say("raised", [type(got).__name__, str(got)])
    else:
        say("resumed", got and got["step"])
        if case.scenario == "attempt":
            for step, save in ((40, gang.periodic), (45, gang.round), (50, gang.periodic)):
                if save(lib, step):
                    say("complete", step)
            gang.end()
    say("counted", [[t, lib.fault_count(t)] for t in range(64) if lib.fault_count(t)])
    say("hits", lib.fault_hits())
    if case.call == 0:
        names = [lib.fault_name(i) for i in range(8192)]
        say("calls", [n.decode(errors="replace") for n in names if n])
    if case.kind == STALL and lib.fault_stalled():
        say("overtaken", True)


def succeed(case, root, lib, say, done):
    """While attempt 2 stalls, attempt 3 takes the directory over and saves. Then attempt 2 goes on."""
    while not lib.fault_stalled():
        time.sleep(0.0005)
    if case.scenario == "attempt":
        later = Gang(root, case.world, 3, lambda error: say("broken", "attempt 3 was fenced: %s" % error))
        got = later.resume(lib)
        say("later resumed", got["step"] if isinstance(got, dict) else repr(got))
        say("manifests", manifests(root))
        say("later complete", later.periodic(lib, 60))
        later.end()
    done.set()
    lib.fault_release()


def manifests(root):
    """Checkpoints of attempt 2 that are complete."""
    return sorted(
        n for n in os.listdir(root) if ".attempt-2" in n and os.path.exists(os.path.join(root, n, checkpoint.MANIFEST))
    )


def told(case, root, lib):
    """Run the case in a fork. (what it said, its exit status)."""
    until = time.monotonic() + 10  # a fork takes along the locks of other threads
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.001)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)

        def say(what, value):
            os.write(write, json.dumps([what, value]).encode() + b"\n")

        try:
            attempt(case, root, lib, say)
        except Broken as error:
            say("broken", str(error))
        except BaseException as error:
            say("broken", "%s: %s" % (type(error).__name__, error))
        os._exit(0)
    os.close(write)
    kill = threading.Timer(SECONDS, os.kill, (pid, 9))
    kill.start()
    with os.fdopen(read, "rb") as f:
        lines = [json.loads(line) for line in f.read().splitlines()]
    _, status = os.waitpid(pid, 0)
    kill.cancel()
    kill.join()
    return lines, os.waitstatus_to_exitcode(status) if hasattr(os, "waitstatus_to_exitcode") else status >> 8


def check(case, template, lib, scratch):
    """Run a case and judge what it left. Gives what it said; raises Broken."""
    root = os.path.join(scratch, "root")
    for again in (True, False):  # on a busy machine a rare case is killed at its time limit and passes alone: a hang does not
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(template, root)
        lines, code = told(case, root, lib)
        if code != -9 or not again:
            break
    said = collections.defaultdict(list)
    for what, value in lines:
        said[what].append(value)
    if said["broken"] or code not in (0, FENCED, CRASHED):
        raise Broken("%s (exit code %d)" % (said["broken"], code))
    judge_resume(case, said)
    if case.scenario == "reader":
        before, after = listing(template), listing(root)
        if before != after:
            raise Broken("a reader changed %s" % sorted(k for k in {*before, *after} if before.get(k) != after.get(k)))
    overtaken = bool(said["later resumed"])
    least = max([20, *said["complete"]])
    if overtaken:
        if said["later resumed"][0] not in (20, 40, 45, 50) or said["later complete"] != [True]:
            raise Broken(
                "the later attempt resumed from %s, saved: %s" % (said["later resumed"], said["later complete"])
            )
        late = set(manifests(root)) - set(said["manifests"][0])
        if len(late) > 1:
            raise Broken(
                "the earlier attempt completed %s after the later one had claimed the directory" % sorted(late)
            )
    gang = Gang(root, case.world, 4, lambda error: None)
    got = gang.resume(lib)
    gang.end()
    if not isinstance(got, dict):
        raise Broken("the next attempt found nothing: %r" % (got,))
    if (overtaken and got["step"] != 60) or got["step"] < least:
        raise Broken(
            "the next attempt resumed from %d, not from %d or later" % (got["step"], 60 if overtaken else least)
        )
    aside = [n for n in os.listdir(root) if checkpoint.QUARANTINE in n and not n.startswith("step-30.attempt-1.")]
    if aside:
        raise Broken("sound checkpoints were set aside: %s" % aside)
    return said


def judge_resume(case, said):
    for name, text in said["raised"]:
        if name not in ("Unreadable", "ClaimRefused", "Fenced"):
            raise Broken("resume raised %s: %s" % (name, text))
        if case.kind == ERROR and case.times == 1 and case.number in PASSING and "fsync" not in text:
            raise Broken("one error that passed made resume raise: %s" % text)
    for step in said["resumed"]:
        if step not in ((20, 40, 45, 60) if case.kind == STALL else (20,)):
            raise Broken("resumed from %s, not from 20" % step)


# ---- all cases


SHARE = {1: 0.4, 2: 0.4, 8: 0.2}  # of the cases, by the number of ranks: those of 8 take the longest


def cases(counts, seed):
    """Every kind of fault at every counted call."""
    rng = random.Random(seed)
    found = collections.defaultdict(list)
    for (scenario, world), per_thread in counts.items():
        for thread, calls in per_thread:
            for call in range(1, calls + 1):
                found[world] += [
                    Case(scenario, world, thread, call, ERROR, rng.choice(PASSING), 1),
                    Case(scenario, world, thread, call, ERROR, rng.choice(ERRNOS), 1),
                    Case(scenario, world, thread, call, ERROR, rng.choice(ERRNOS), FOREVER),
                    Case(scenario, world, thread, call, ERROR, rng.choice(PASSING), TRIES),
                    Case(scenario, world, thread, call, CRASH, 0, 1),
                    Case(scenario, world, thread, call, FULL, 0, FOREVER),
                    Case(scenario, world, thread, call, STALL, 0, 1),
                ]
    return [case for each in found.values() for case in each]


def sample(every, amount, rng, even):
    """So many of the cases (0: all), by SHARE unless even."""
    if not amount or amount >= len(every):
        return every
    if even:
        return rng.sample(every, amount)
    chosen = []
    for world, share in SHARE.items():
        each = [case for case in every if case.world == world]
        chosen += rng.sample(each, min(len(each), int(amount * share)))
    return chosen


def speed_up():
    storage.DELAYS = storage.IN_A_STEP = (0.0005, 0.0005)
    saver.POLL = (0.0005, 0.01)
    saver.ASSEMBLE_WITHIN = 0.2
    claims.BEAT_EVERY = 3600.0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=5000, help="0 for all there are")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="K/N: only every Nth case, from the Kth")
    parser.add_argument(
        "--break", dest="broken", default="", choices=["", *BREAKS], help="remove a protection: must fail"
    )
    parser.add_argument("--only", default="", choices=["", *NEEDED_BY], help="only cases that need this protection")
    parser.add_argument("--worlds", default="1,2,8", help="numbers of ranks")
    parser.add_argument("--one", default="", help="one case, as printed for a failure in parentheses")
    parser.add_argument("--worst", type=int, default=5, help="failures to print")
    options = parser.parse_args(argv)
    if "fault" not in os.environ.get("LD_PRELOAD", ""):
        return preloaded(argv)
    speed_up()
    lib = shim()
    number_threads(lib)
    scratch = tempfile.mkdtemp(prefix="pitcrew-faults-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        return run(options, lib, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run(options, lib, scratch):
    templates, counts = {}, {}
    for world in map(int, options.worlds.split(",")):
        templates[world] = os.path.join(scratch, "template-%d" % world)
        os.mkdir(templates[world])
        pid = os.fork()  # the threads that save end with it
        if pid == 0:
            try:
                prepare(templates[world], world, lib)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(pid, 0)[1]:
            raise Broken("the template for %d ranks could not be made" % world)
        for scenario in ("attempt", "reader"):
            said = check(Case(scenario, world, 0, 0, 0, 0, 0), templates[world], lib, scratch)
            counts[scenario, world] = said["counted"][0]
    BREAKS.get(options.broken, lambda: None)()
    every = cases(counts, options.seed)
    if options.only:
        every = [case for case in every if case.world < 8 and NEEDED_BY[options.only](case)]
    every = sample(every, options.cases, random.Random(options.seed), even=bool(options.only))
    if options.one:
        scenario, *numbers = options.one.split(",")
        every = [Case(scenario, *map(int, numbers))]
    k, n = map(int, options.part.split("/"))
    mine, failed, hit = every[k::n], [], 0
    for case in mine:
        try:
            said = check(case, templates[case.world], lib, scratch)
            hit += bool(not said["hits"] or said["hits"][-1])  # one that died or was fenced was hit
        except Broken as error:
            failed.append((case, error))
            if len(failed) <= options.worst:
                print("BROKEN: %s:\n    %s" % (case, error), flush=True)
    calls = {"%s, %d ranks" % key: sum(c for _, c in value) for key, value in counts.items()}
    print(json.dumps({"cases": len(mine), "hit": hit, "failed": len(failed), "calls": calls, "seed": options.seed}))
    return 1 if failed else 0


def without_retry():
    storage.DELAYS = storage.IN_A_STEP = ()


def without_fence():
    claims.Claim.check = lambda self: None


def without_read_only():
    original = custody.Custody.resume

    def resume(self, load_fn, accepts, fresh=False, read_only=False):
        return original(self, load_fn, accepts, fresh, False)

    custody.Custody.resume = resume


def errors_as_damage():
    """As it was before: an unreadable file is a damaged one."""

    def verify(path, files, progress=None):
        try:
            original(path, files, progress)
        except OSError as error:
            raise checkpoint.Damaged(str(error)) from error

    original, checkpoint.verify = checkpoint.verify, verify


NEEDED_BY = {  # the cases among which a protection matters
    "retry": lambda case: case.kind == ERROR and case.times == 1 and case.number in PASSING and case.thread < 8,
    "fence": lambda case: case.kind == STALL and case.scenario == "attempt",
    "read-only": lambda case: case.scenario == "reader",
    "damage": lambda case: case.kind == ERROR and case.times == TRIES and case.thread < 8,
}
BREAKS = {
    "retry": without_retry,
    "fence": without_fence,
    "read-only": without_read_only,
    "damage": errors_as_damage,
}


def preloaded(argv):
    """Build the shim and start again with it."""
    with tempfile.TemporaryDirectory() as directory:
        library = os.path.join(directory, "fault.so")
        subprocess.run(
            [
                os.environ.get("CC", "cc"),
                "-O1",
                "-shared",
                "-fPIC",
                "-o",
                library,
                os.path.join(HERE, "fault.c"),
                "-ldl",
            ],
            check=True,
        )
        env = dict(os.environ, LD_PRELOAD=library, PYTHONDONTWRITEBYTECODE="1")
        return subprocess.run([sys.executable, __file__, *(sys.argv[1:] if argv is None else argv)], env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
