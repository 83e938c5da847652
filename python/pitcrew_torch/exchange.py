"""How the ranks of a gang agree before training starts: over torch.distributed's own store.

Promises: no collective, no device, no numpy; a rank that waits goes on waiting while any rank makes progress, however
large the checkpoint, and raises once nobody has for `PATIENCE`.

No torch here: the store is handed in.
"""

import datetime
import itertools
import json
import time

PATIENCE = 600.0  # seconds without progress of any rank
LOOK = 20.0  # seconds between two looks for progress
TELL = 5.0  # seconds between two reports of progress


class Alone:
    """The exchange of a rank that has nobody to ask: a single process, or one before init_process_group."""

    def share(self, value):
        return value

    def worst(self, verdict, text=""):
        return verdict, text

    def progress(self, count=0):
        pass


class StoreExchange:
    """share(value): every rank gets rank 0's value. worst(verdict, text): every rank gets the highest verdict and the
    text of a rank that gave it. progress(): this rank is at work."""

    _exchanges = itertools.count()  # every rank calls resume() equally often, so these agree

    def __init__(self, store, rank, world_size, attempt, clock=time.monotonic):
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._prefix = "pitcrew/%d/%d" % (attempt, next(self._exchanges))
        self._shared = itertools.count()
        self._voted = itertools.count()
        self._clock = clock
        self._told = clock()

    def share(self, value):
        key = "%s/share/%d" % (self._prefix, next(self._shared))
        if self._rank == 0:
            self._store.set(key, json.dumps(value))
        return json.loads(self._get(key))

    def worst(self, verdict, text=""):
        key = "%s/vote/%d" % (self._prefix, next(self._voted))
        if verdict and self._store.add("%s/%d" % (key, verdict), 1) == 1:
            self._store.set("%s/%d/text" % (key, verdict), text[:2000])
        if self._store.add(key + "/votes", 1) == self._world_size:  # the last one counts for all
            worst = next((v for v in range(9, 0, -1) if self._store.add("%s/%d" % (key, v), 0)), 0)
            self._store.set(key + "/verdict", str(worst))
        worst = int(self._get(key + "/verdict"))
        return worst, self._get("%s/%d/text" % (key, worst)).decode() if worst else ""

    def progress(self, count=0):
        now = self._clock()
        if now - self._told >= TELL:
            self._told = now
            self._store.add(self._prefix + "/progress", 1)

    def _get(self, key):
        """The value, once some rank has set it."""
        since, made = self._clock(), self._store.add(self._prefix + "/progress", 0)
        while True:
            try:
                self._store.wait([key], datetime.timedelta(seconds=LOOK))
                return self._store.get(key)
            except RuntimeError as error:  # a time-out, under several names
                now = self._store.add(self._prefix + "/progress", 0)
                if now != made:
                    since, made = self._clock(), now
                elif self._clock() - since > PATIENCE:
                    raise RuntimeError(
                        "pitcrew: rank %d waited %.0f s for the other ranks to choose a checkpoint, and none of them "
                        "made progress: look for a rank that died or hangs in its storage" % (self._rank, PATIENCE)
                    ) from error
