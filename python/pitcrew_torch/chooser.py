"""Which checkpoint to resume from: one choice for all ranks.

Promises: every rank gets the same answer; rank 0 proposes the newest directory whose manifest and sizes hold, the ranks
share the reading of its checksums, and any rank's objection moves all of them to the next one. A damaged directory is
renamed aside by rank 0; one that another rank cannot see, or that is of another world size, is only passed over.

No torch here: the exchange between ranks is handed in.
"""

import os

from . import checkpoint

SOUND, ABSENT, DAMAGED = 0, 1, 2


class Alone:
    """The exchange of a rank that has nobody to ask: a single process, or one before init_process_group."""

    def share(self, value):
        return value

    def worst(self, verdict):
        return verdict


def choose(root, exchange, rank, world_size, accepts, note):
    """(directory, manifest) or None. accepts(manifest) tells whether another world size can be loaded.

    exchange.share(value of rank 0) gives every rank that value; exchange.worst(verdict) gives every rank the worst.
    note(text) is told what was passed over and why.
    """
    proposals = _proposals(root, accepts, note) if rank == 0 else iter(())
    while True:
        offer = exchange.share(next(proposals, None))
        if offer is None:
            return None
        path, manifest = os.path.join(root, offer["name"]), offer["manifest"]
        verdict, reason = _inspect(path, manifest["files"][rank::world_size])
        if reason:
            note("%s: %s" % (path, reason))
        verdict = exchange.worst(verdict)
        if verdict == SOUND:
            return path, manifest
        if verdict == DAMAGED and rank == 0:
            _set_aside(path, "a checksum does not hold", note)


def _proposals(root, accepts, note):
    for path in checkpoint.candidates(root):
        try:
            manifest = checkpoint.load_manifest(path)
        except checkpoint.Damaged as error:
            _set_aside(path, error, note)
            continue
        if accepts(manifest):
            yield {"name": os.path.basename(path), "manifest": manifest}
        else:
            note("%s: passed over, it is of %s ranks" % (path, manifest.get("world_size")))


def _inspect(path, files):
    if not os.path.isdir(path):
        return ABSENT, "not visible from this rank: checkpoint_dir must be shared by all ranks"
    try:
        checkpoint.verify(path, files)
    except checkpoint.Damaged as error:
        return DAMAGED, str(error)
    return SOUND, ""


def _set_aside(path, why, note):
    aside = checkpoint.quarantine(path)
    note("%s is not a checkpoint (%s); %s" % (path, why, "now %s" % os.path.basename(aside) if aside else "left there"))
