"""The ranks' agreement over a store: however slow the checksums, never forever."""

import json
import threading
import time

from pitcrew_torch import exchange
from pitcrew_torch.exchange import StoreExchange


class Store:
    """A store as torch.distributed's, in one process."""

    def __init__(self):
        self._values, self._changed = {}, threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def add(self, key, amount):
        with self._changed:
            total = int(self._values.get(key, 0)) + amount
            self._values[key] = str(total).encode()
            self._changed.notify_all()
            return total

    def get(self, key):
        return self._values[key]

    def wait(self, keys, timeout):
        with self._changed:
            if not self._changed.wait_for(lambda: all(k in self._values for k in keys), timeout.total_seconds()):
                raise RuntimeError("Socket Timeout")


def ranks(act, world_size=3):
    store, found = Store(), [None] * world_size
    number = next(StoreExchange._exchanges)

    def one(rank):
        mine = StoreExchange(store, rank, world_size, 0)
        mine._prefix = "pitcrew/0/%d" % number
        try:
            found[rank] = act(rank, mine)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(r,)) for r in range(world_size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    return found


def test_all_ranks_hear_the_first_ones_value_and_the_worst_verdict_with_its_reason():
    def act(rank, x):
        return [
            x.share({"from": rank}),
            x.worst(0),
            x.worst(2 if rank == 1 else 0, "rank %d" % rank),
            x.worst(1, "all")[0],
        ]

    assert ranks(act) == [[{"from": 0}, (0, ""), (2, "rank 1"), 1]] * 3


def test_a_rank_that_makes_progress_is_waited_for_however_long(monkeypatch):
    """A checkpoint of a terabyte takes longer to check than any fixed time-out."""
    monkeypatch.setattr(exchange, "PATIENCE", 0.3)
    monkeypatch.setattr(exchange, "LOOK", 0.05)
    monkeypatch.setattr(exchange, "TELL", 0.02)

    def act(rank, x):
        if rank == 2:
            for _ in range(30):
                time.sleep(0.04)
                x.progress(1 << 20)
        return x.worst(0)

    assert ranks(act) == [(0, "")] * 3


def test_ranks_do_not_wait_forever_for_one_that_makes_none(monkeypatch):
    monkeypatch.setattr(exchange, "PATIENCE", 0.2)
    monkeypatch.setattr(exchange, "LOOK", 0.05)
    found = ranks(lambda rank, x: None if rank == 2 else x.worst(0))
    assert all("none of them made progress" in str(e) for e in found[:2]) and found[2] is None


def test_what_is_shared_is_small_whatever_the_manifest():
    """Ranks read the manifest from the storage: through one store it would go out once for each of thousands."""
    from pitcrew_torch import chooser

    assert len(json.dumps({"name": "x", "crc": chooser._crc({"step": 1, "files": [{}] * 10_000})})) < 100
