"""A rank's dealings with its checkpoint directory: the claim, the choice to resume from, the claim's heartbeat.

Promises: one rank claims for the gang and all ranks agree; `resume` is one decision for all ranks; with read_only
nothing on the storage is touched; the heartbeat is a thread of its own, which neither a step nor the end of the process
waits for, and so is the lookout on other nodes, which reads it for whoever asks whether the attempt lives.

No torch here.
"""

import contextlib
import threading
import time

from . import chooser, claims
from .claims import ClaimRefused, Fenced
from .exchange import Alone
from .ownership import Owner

ADOPTED_WITHIN = 120.0  # seconds between the starts of ranks that agree by the storage alone
LOOKOUTS = 16  # nodes of a job, at most about, on which a rank reads the heartbeat
READ_WITHIN = 2.0  # seconds; what a look that took longer found is of no known time


class LoadContext:
    """What a load_fn gets: directory, step, manifest, and who asks."""

    def __init__(self, directory, manifest, rank, world_size):
        self.directory = directory
        self.manifest = manifest
        self.step = manifest["step"]
        self.rank = rank
        self.world_size = world_size
        self.writer = next((f["rank"] for f in manifest["files"] if f["rank"] != rank), rank)


class Custody:
    """run: identity.Run. place(): (rank, world size) now. exchange(): a new exchange between the ranks. step(): last
    completed step. fenced(error): ends this process. seen(epoch, attempt, step, count, read_ns): hears what this rank
    reads of rank 0's heartbeat; None for a rank that does not read it."""

    def __init__(self, root, run, place, exchange, note, step, fenced, take_over=False, seen=None):
        self.root, self.run = root, run
        self._place, self._exchange, self._note, self._step, self._fenced = place, exchange, note, step, fenced
        self._take_over, self._seen = take_over, seen
        self.owner = None
        self.read_only = False
        self._refused = None
        self._beat = None

    def own(self, acquire=True):
        """This attempt's Owner. With acquire, all ranks come here together at first, and claim the directory for a run
        that has not resumed from it: what earlier runs left there is not this run's past."""
        if self.owner is None and acquire:
            if self._refused is not None:
                raise self._refused
            rank, _ = self._place()
            self._acquire(self._exchange())
            if rank == 0:
                claims.write_base(self.owner.claim, [], None, fresh=True)
        return self.owner

    def _acquire(self, exchange):
        rank, world = self._place()
        alone = isinstance(exchange, Alone)
        answer = self._take(alone and world > 1) if rank == 0 or alone else None
        answer = exchange.share(answer)
        if "record" not in answer:
            self._refused = ClaimRefused(answer["error"])
            raise self._refused
        self.owner = Owner(claims.Claim(self.root, answer["record"]), self.run)
        if rank == 0 and self._beat is None:
            self._beat = Heartbeat(self.owner, self.run.attempt, self._step, self._fenced)
            self._beat.start()
        elif self._seen is not None and self._beat is None:
            self._beat = Lookout(self.owner, self._seen, self._fenced)
            self._beat.start()

    def _take(self, adopt):
        try:
            # Where ranks have no store to agree by, they find one another's claim.
            ours = self._near if adopt else lambda claim: False
            rank, _ = self._place()
            return {"record": claims.take(self.root, self.run, rank, take_over=self._take_over, ours=ours).record}
        except (ClaimRefused, OSError) as error:
            return {"error": "cannot claim %s: %s" % (self.root, error)}

    def _near(self, claim):
        """Whether another rank of this attempt made the claim. One of this rank's number is another launch's, and one
        whose heartbeat has ended is of a run that is over."""
        near = abs(claim.get("started", 0) - self.run.started) < ADOPTED_WITHIN
        if not near or claim.get("attempt") != self.run.attempt or not self._same(claim):
            return False
        beat = claims.beat(self.root, claim["epoch"]) or {}
        return claim.get("rank") != self._place()[0] and not beat.get("ended")

    def _same(self, claim):
        return self.run.is_instance(claim) or self.run.same_job(claim)

    def resume(self, load_fn, accepts, fresh=False, read_only=False):
        """The manifest that was loaded, or None for a start from nothing. Raises on all ranks alike."""
        rank, world = self._place()
        exchange = self._exchange()
        self.read_only = read_only
        if not read_only:
            self._acquire(exchange)
        owner = None if read_only else self.owner
        found, proposer = chooser.choose(
            self.root, exchange, rank, world, accepts, self._note, owner, self._of_this_run if fresh else None
        )
        if owner is not None:
            error = "" if proposer is None else self._remember(proposer, found, fresh)
            verdict, error = exchange.worst(1 if error else 0, error)
            if verdict:
                raise ClaimRefused(error)
        if found is None:
            return None
        path, manifest = found
        load_fn(LoadContext(path, manifest, rank, world))
        return manifest

    def _remember(self, proposer, found, fresh):
        """Record what this claim found. Later choosers tell by it what an older attempt wrote afterwards, and with
        fresh what this run left behind on purpose."""
        try:
            self.owner.check()
            seen = [c.name for c in proposer.complete() if not fresh or self._of_this_run(c.manifest)]
            chosen = found and {k: found[1][k] for k in ("step", "attempt", "epoch")}
            claims.write_base(self.owner.claim, seen, chosen, fresh)
        except (OSError, Fenced) as error:
            return "cannot record the choice in %s: %s" % (self.root, error)
        return ""

    def _of_this_run(self, manifest):
        return self.owner is not None and any(
            c["epoch"] == manifest["epoch"] and self._same(c) for c in self.owner.history
        )

    def end(self):
        """Training is over: the claim's heartbeat says so, and nobody looks at it any more."""
        if self._beat is not None:
            self._beat.end()


class Heartbeat(threading.Thread):
    """Shows on the storage that a claim's process lives and how far it is, and finds a later claim. The storage may
    hang this thread for as long as it likes."""

    def __init__(self, owner, attempt, step, fenced):
        super().__init__(name="pitcrew-claim", daemon=True)
        self._owner, self._attempt, self._step, self._fenced = owner, attempt, step, fenced
        self._over = threading.Event()
        self._count = 0

    def run(self):
        while True:
            ending = self._over.is_set()
            try:
                self._owner.check()
                self._count += 1
                claims.write_beat(
                    self._owner.root, self._owner.epoch, self._attempt, self._step(), self._count, ended=ending
                )
            except Fenced as error:
                if not ending:
                    self._fenced(error)
                return
            except OSError:
                pass  # the next beat tries again; a reader sees no progress meanwhile
            if ending:
                return
            self._over.wait(claims.BEAT_EVERY)

    def end(self, patience=1.0):
        """The last beat; waits for the storage for `patience` seconds at most."""
        self._over.set()
        if threading.current_thread() is not self:
            with contextlib.suppress(RuntimeError):
                self.join(patience)


class Lookout(threading.Thread):
    """Reads the claim's heartbeat on a node where rank 0 is not, and finds a later claim. The job's own mount and
    rights are enough for it. The storage may hang this thread for as long as it likes."""

    def __init__(self, owner, seen, fenced):
        super().__init__(name="pitcrew-lookout", daemon=True)
        self._owner, self._seen, self._fenced = owner, seen, fenced
        self._over = threading.Event()

    def run(self):
        while not self._over.is_set():
            began = time.monotonic_ns()
            try:
                self._owner.check()
                self._look(began)
            except Fenced as error:
                if not self._over.is_set():
                    self._fenced(error)
                return
            except (OSError, KeyError, TypeError, ValueError):
                pass  # what cannot be read is no reading: it grows old, and nothing follows from it
            self._over.wait(claims.BEAT_EVERY)

    def _look(self, began):
        value = claims.beat(self._owner.root, self._owner.epoch)
        if value is None or value.get("epoch") != self._owner.epoch:
            return
        if time.monotonic_ns() - began < READ_WITHIN * 1e9:
            self._seen(*(max(0, int(value[name])) for name in ("epoch", "attempt", "step", "count")), began)

    def end(self):
        self._over.set()


def looks_out(rank, local_rank, world, local_world):
    """Whether a rank reads the heartbeat: one on each node, or of a large job on every so many nodes, spread evenly."""
    local_world = max(1, local_world)
    every = local_world * max(1, -(-world // local_world) // LOOKOUTS)
    return rank > 0 and local_rank == 0 and rank % every == 0
