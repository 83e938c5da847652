"""Which checkpoint to resume from: one choice for all ranks.

Promises: every rank gets the same answer, or every rank raises; rank 0 proposes, the ranks share the reading of the
checksums, any rank's objection moves all of them. What an older attempt wrote after a later one had claimed the
directory is chosen only where nothing else is left. Only damage by content moves the choice to the next checkpoint; an
I/O error raises. While there are candidates, "none" is not an answer: `NoCheckpoint` is raised, unless the caller
starts afresh.

A damaged directory is renamed aside only with a claim, by rank 0, and only if it is complete and of this job.

No torch here: the exchange between ranks is handed in.
"""

import os
import zlib

from . import checkpoint, claims, storage
from .checkpoint import QUARANTINE, parse_name
from .exchange import Alone

SOUND, DAMAGED, UNREADABLE = 0, 1, 2


class NoCheckpoint(Exception):
    """There are checkpoints, and none can be used. The text lists each with the reason."""


class Unreadable(Exception):
    """Storage failed while the choice was made. The text names path, rank, node and remedy."""


RAISED = {"none": NoCheckpoint, "fenced": claims.Fenced, "unreadable": Unreadable}


class Candidate:
    """A checkpoint directory and what it says it holds. late: written after a later attempt had claimed the root."""

    def __init__(self, name, manifest, late):
        self.name, self.manifest, self.late = name, manifest, late
        self.step = manifest["step"]
        self.order = (not late, self.step, manifest["epoch"], manifest["attempt"], name.endswith(checkpoint.ROUND))


class Survey:
    """What a root holds: `complete` candidates, the preferred one first, and the names of the rest with their
    reasons."""

    def __init__(self, root):
        bases = claims.bases(root)
        self.complete, self.damaged, self.incomplete, self.unreadable = [], {}, {}, {}
        self.listed = storage.names(root, absent=[])
        for name in checkpoint.candidates(root, self.listed):
            try:
                manifest = checkpoint.read_manifest(os.path.join(root, name))
            except checkpoint.Damaged as error:
                self.damaged[name] = str(error)
            except checkpoint.Incomplete as error:
                self.incomplete[name] = str(error)
            except OSError as error:
                if not gone(root, name):
                    self.unreadable[name] = str(error)
            else:
                late = any(epoch > manifest["epoch"] and name not in base["seen"] for epoch, base in bases.items())
                self.complete.append(Candidate(name, manifest, late))
        self.complete.sort(key=lambda c: c.order, reverse=True)


def gone(root, name):
    """Whether a directory is no longer there: its owner has pruned it or set it aside."""
    try:
        return name not in storage.names(root)
    except OSError:
        return False


class Proposer:
    """Rank 0's part: what to look at next."""

    def __init__(self, root, accepts, note, owner, only):
        self._root, self._accepts, self._note = root, accepts, note
        self._owner, self._only = owner, only
        self._skipped = {}  # name -> why, over all surveys
        self._offered = None
        self._error = None
        self._look()

    def _look(self):
        self._survey = Survey(self._root)
        for name, why in self._survey.damaged.items():
            self._damaged(name, why)
        for name in self._survey.listed:
            if QUARANTINE in name and parse_name(name.partition(QUARANTINE)[0]):
                self._skipped.setdefault(name, "set aside as damaged")
        self._left = list(self._survey.complete)

    def complete(self):
        """The candidates that were complete."""
        return self._survey.complete

    def next(self):
        """The next offer to all ranks; None for nothing to resume from."""
        try:
            return self._next()
        except claims.Fenced as error:
            return {"error": str(error), "kind": "fenced"}
        except OSError as error:
            return {"error": "rank 0: %s" % error, "kind": "unreadable"}

    def _next(self):
        if self._error:
            return {"error": self._error, "kind": "unreadable"}
        while self._left:
            self._offered = c = self._left.pop(0)
            if self._only is not None and not self._only(c.manifest):
                self._note("%s: passed over, fresh=True and an earlier run wrote it" % c.name)
                continue
            newer = [n for n in self._survey.unreadable if parse_name(n)[0] >= c.step]
            if newer and self._only is None:
                return self._unreadable(newer[0])
            if not self._accepts(c.manifest):
                self._skip(c.name, "it is of %s ranks, and load_fn reads only checkpoints of as many ranks as train "
                           "now (any_world_size=True changes that)" % c.manifest.get("world_size"))  # fmt: skip
                continue
            offer = {"name": c.name, "crc": _crc(c.manifest)}
            return offer if self._completed(c) else dict(offer, manifest=c.manifest)
        if self._only is None and self._survey.unreadable:
            return self._unreadable(next(iter(self._survey.unreadable)))
        if self._only is None and self._skipped:
            return {
                "kind": "none",
                "error": "%s holds checkpoints, and none of them can be used:%s\nTraining does not start over "
                "unless it is told to. Remedy: repair or remove what is listed, or call resume(fresh=True)"
                % (self._root, "".join("\n  %s: %s" % each for each in sorted(self._skipped.items()))),
            }  # fmt: skip
        return None

    def _unreadable(self, name):
        return {"kind": "unreadable", "error": "rank 0: %s" % self._survey.unreadable[name]}

    def _completed(self, c):
        """Whether the directory has its manifest: from a complete set of receipts the owner makes it now, so that other
        ranks need to read one file instead of one for each rank."""
        path, m = os.path.join(self._root, c.name), c.manifest
        if m.get("created"):
            return True
        if self._owner is None:
            return False
        checkpoint.write_manifest(
            path, m["step"], m["attempt"], m["world_size"], m["files"], "", True, m["epoch"], self._owner.check
        )
        return False  # the offer was made with what the receipts say

    def judged(self, verdict, reason):
        """The ranks have looked at what was offered."""
        name = self._offered.name
        try:
            if verdict == DAMAGED:
                self._damaged(name, reason, self._offered.manifest)
            elif gone(self._root, name):
                self._look()
            else:
                self._error = (
                    "%s cannot be read, so it was not decided whether it is sound, and nothing was renamed: %s"
                    % (name, reason)
                )
        except claims.Fenced as error:
            self._left, self._skipped, self._error = [], {}, str(error)
        except OSError as error:
            self._error = "rank 0: %s" % error

    def _damaged(self, name, why, manifest=None):
        aside = None
        if self._owner is not None and self._owner.may_rename(name, manifest):
            self._owner.check()
            aside = checkpoint.quarantine(os.path.join(self._root, name))
        self._skip(name, "damaged: %s; %s" % (why, "now %s" % os.path.basename(aside) if aside else "left there"))

    def _skip(self, name, why):
        self._skipped[name] = why
        self._note("%s: passed over: %s" % (os.path.join(self._root, name), why))


def choose(root, exchange, rank, world_size, accepts, note, owner=None, only=None):
    """(directory, manifest) or None, and on rank 0 the Proposer, else None. Raises NoCheckpoint, Unreadable or Fenced,
    on all ranks alike.

    accepts(manifest) tells whether this job can load it. owner: an ownership.Owner, without which nothing is touched.
    only: with it a manifest counts only if only(manifest), and None is an answer. note(text) is told what was passed
    over."""
    proposer, failed = None, None
    if rank == 0:
        try:
            proposer = Proposer(root, accepts, note, owner, only)
        except claims.Fenced as error:
            failed = {"error": str(error), "kind": "fenced"}
        except OSError as error:
            failed = {"error": "rank 0: %s" % error, "kind": "unreadable"}
    while True:
        offer = exchange.share(proposer.next() if proposer else failed)
        if offer is None:
            return None, proposer
        if "error" in offer:
            raise RAISED[offer["kind"]](offer["error"])
        path, verdict, reason, manifest = os.path.join(root, offer["name"]), SOUND, "", None
        try:
            manifest = _agreed(path, offer)
            checkpoint.verify(path, manifest["files"][rank::world_size], exchange.progress)
        except checkpoint.Damaged as error:
            verdict, reason = DAMAGED, "rank %d: %s" % (rank, error)
        except OSError as error:
            verdict, reason = UNREADABLE, "rank %d: %s" % (rank, error)
        verdict, reason = exchange.worst(verdict, reason)
        if verdict == SOUND:
            return (path, manifest), proposer
        if proposer:
            proposer.judged(verdict, reason)


def _crc(manifest):
    named = ("step", "attempt", "epoch", "world_size", "files")
    return zlib.crc32(storage.encode([manifest.get(name) for name in named]))


def _agreed(path, offer):
    """The manifest that rank 0 has seen, as this rank sees it."""
    if "manifest" in offer:
        return offer["manifest"]

    def act():
        manifest = checkpoint.read_manifest(path)
        if _crc(manifest) != offer["crc"]:
            raise OSError(116, "this rank sees another manifest than rank 0", path)  # ESTALE: the server's will come
        return manifest

    return storage.retried("read the manifest of", path, act)


__all__ = ["Alone", "NoCheckpoint", "Proposer", "Survey", "Unreadable", "choose"]
