"""Ranks of a gang as threads of one process."""

import json
import threading


class Board:
    """What the ranks' exchanges share."""

    def __init__(self, world_size, timeout=20):
        self.barrier = threading.Barrier(world_size, timeout=timeout)
        self.value = None
        self.verdicts = []


class Exchange:
    """One rank's exchange with the other threads."""

    def __init__(self, board, rank):
        self._board, self._rank = board, rank

    def share(self, value):
        board = self._board
        if self._rank == 0:
            board.value, board.verdicts = json.dumps(value), []
        board.barrier.wait()
        result = json.loads(board.value)
        board.barrier.wait()
        return result

    def worst(self, verdict, text=""):
        board = self._board
        board.verdicts.append((verdict, text))
        board.barrier.wait()
        result = max(board.verdicts)
        board.barrier.wait()
        if self._rank == 0:
            board.verdicts = []
        board.barrier.wait()
        return result

    def progress(self, count=0):
        pass


def together(world_size, act, timeout=20):
    """[act(rank, exchange) of each rank]. What rank 0 raises is raised; all ranks must raise the same."""
    board, found, raised = Board(world_size, timeout), [None] * world_size, [None] * world_size

    def one(rank):
        try:
            found[rank] = act(rank, Exchange(board, rank))
        except Exception as error:
            raised[rank] = error

    threads = [threading.Thread(target=one, args=(r,), name="rank %d" % r, daemon=True) for r in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * timeout)
    if any(raised):
        assert len({(type(e), str(e)) for e in raised}) == 1, "the ranks raised differently: %r" % (raised,)
        raise raised[0]
    return found
