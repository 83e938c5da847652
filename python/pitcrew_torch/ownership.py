"""What an attempt may do to a checkpoint directory that it has claimed: rename, delete, and for how long.

Promises: each change is preceded by a look at the claims; nothing is renamed that may be in progress or of another job;
`prune` keeps what this job may still resume from, counts only checkpoints that it accepts, never touches one of a later
attempt, and reports what it deletes.

No torch here.
"""

import contextlib
import os
import shutil

from . import claims, storage
from .checkpoint import MANIFEST, PRUNED, parse_name
from .chooser import Survey


class Owner:
    """A claim with the run that made it."""

    def __init__(self, claim, run):
        self.claim, self._run = claim, run
        self.root, self.epoch, self.suffix = claim.root, claim.epoch, claim.suffix
        self._history = None

    @property
    def history(self):
        """All claims up to this one. Read when first needed: only rank 0 needs it, and reports a failure there."""
        if self._history is None:
            self._history = [record for record in claims.history(self.root) if record["epoch"] <= self.epoch]
        return self._history

    def check(self):
        self.claim.check()

    def _claim_of(self, name, manifest=None):
        """The claim that a directory was written under, or None where none is known."""
        _, attempt, epoch = parse_name(name)
        epoch = epoch or (manifest or {}).get("epoch")
        for record in self.history:
            if record["epoch"] == epoch if epoch else record.get("attempt") == attempt:
                return record
        return None

    def _ours(self, record):
        return self._run.is_instance(record) or self._run.same_job(record)

    def may_rename(self, name, manifest=None):
        """Whether a complete, damaged directory may be set aside: not one of another job, nor of a later claim."""
        record = self._claim_of(name, manifest)
        if record is None:
            return True
        return record["epoch"] <= self.epoch and (self._ours(record) or not self._run.another_job(record))

    def prune(self, keep, accepts, busy, note):
        """Delete checkpoints beyond the newest `keep` that this job accepts, and folders of this run that can no longer
        become one. busy: steps whose checkpoints are still being put together."""
        survey = Survey(self.root)
        mine = [c for c in survey.complete if not c.late and c.manifest["epoch"] <= self.epoch and accepts(c.manifest)]
        doomed = {c.name: "older than the newest %d" % keep for c in mine[max(1, keep) :]}
        newest = max((c.step for c in mine if c.manifest["epoch"] == self.epoch), default=-1)
        for name, why in survey.incomplete.items():
            step, record = parse_name(name)[0], self._claim_of(name)
            over = step < newest and step not in busy
            if over and record is not None and record["epoch"] <= self.epoch and self._ours(record):
                doomed[name] = "incomplete: %s" % why
        for name, why in doomed.items():
            self._delete(name, why, note)
        for name in survey.listed:
            before = name.partition(PRUNED)[0]
            if name.endswith(PRUNED) and parse_name(before):  # a deletion that was cut short
                record = self._claim_of(before)
                if record is None or record["epoch"] <= self.epoch:
                    self._sweep(name)

    def _delete(self, name, why, note):
        """Rename first: the directory stops being a checkpoint at once, whatever happens to its deletion."""
        path = os.path.join(self.root, name)
        self.check()
        try:
            storage.retried("rename", path, lambda: os.rename(path, path + PRUNED))
        except OSError as error:
            note("%s stays although it is %s: %s" % (name, why, error))
            return
        note("deleted %s: %s" % (name, why))
        self._sweep(name + PRUNED)

    def _sweep(self, name):
        path = os.path.join(self.root, name)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, MANIFEST))
        shutil.rmtree(path, ignore_errors=True)
