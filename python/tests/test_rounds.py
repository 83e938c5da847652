"""The rank's half of a round, without sockets."""

import threading
import time

import pytest

from pitcrew_torch.rounds import NEVER, Rounds


class Left(Exception):
    pass


class Rank:
    """A training thread that steps, and what it said."""

    def __init__(self, attempt=2, can_save=True):
        self.step = 0
        self.said = []
        self.saves = []
        self.over = False
        self.left = None
        self.saving = threading.Event()
        self.saving.set()
        self.rounds = Rounds(
            attempt, lambda: self.step, lambda: can_save, lambda: self.over, self.said.append, self._leave
        )

    def _leave(self, why):
        self.left = why
        raise Left(why)

    def save(self, step, exclude):
        self.saving.wait(5)
        self.saves.append((step, sorted(exclude)))
        return {"dir": "d%d" % step, "files": [], "bytes": 0, "seconds": 0.1}

    def train(self, until):
        def loop():
            try:
                while self.step < until:
                    self.step += 1
                    if self.step >= self.rounds.stop_at:
                        self.rounds.hold(self.step, self.save)
            except Left:
                pass

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        return thread

    def ask(self, kind, req="r", **fields):
        return self.rounds.handle(dict({"t": kind, "req": req, "attempt": 2}, **fields))

    def arm(self, at_step, req="r", deadline_ms=5000, **fields):
        return self.ask("arm", req, at_step=at_step, deadline_ms=deadline_ms, **fields)

    def until_said(self, kind):
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for message in self.said:
                if message["t"] == kind:
                    return message
            time.sleep(0.001)
        raise AssertionError("never said %s, only %r" % (kind, self.said))


def test_arm_hold_go_saved_release():
    rank = Rank()
    assert rank.arm(3, exclude=[1]) == [{"t": "armed", "req": "r", "attempt": 2, "step": 0, "at_step": 3}]
    thread = rank.train(10)
    assert rank.until_said("held")["step"] == 3
    assert rank.saves == []
    assert rank.ask("go") == []
    assert rank.until_said("saved") == {
        "t": "saved", "req": "r", "attempt": 2, "step": 3, "dir": "d3", "files": [], "bytes": 0, "seconds": 0.1,
    }  # fmt: skip
    time.sleep(0.05)
    assert rank.step == 3  # saved is not released
    assert rank.ask("release")[0]["t"] == "released"
    thread.join(5)
    assert rank.step == 10 and rank.saves == [(3, [1])] and rank.rounds.stop_at == NEVER


def test_go_may_come_before_the_step():
    rank = Rank()
    rank.arm(3)
    rank.ask("go")
    rank.train(10)
    rank.until_said("saved")
    assert [m["t"] for m in rank.said] == ["held", "saved"]


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("past", {"at_step": 5}),
        ("past", {"at_step": 4}),
        ("attempt", {"at_step": 9, "attempt": 1}),
        ("attempt", {"at_step": 9, "attempt": "2"}),
        ("attempt", {"at_step": 9, "attempt": None}),
        ("unknown", {"at_step": None}),
        ("unknown", {"at_step": True}),
        ("unknown", {"at_step": 9, "deadline_ms": 0}),
        ("unknown", {"at_step": 9, "deadline_ms": "soon"}),
        ("unknown", {"at_step": 9, "deadline_ms": float("inf")}),
        ("unknown", {"at_step": 9, "deadline_ms": float("nan")}),
        ("unknown", {"at_step": 9, "req": ["r"]}),
    ],
)
def test_refusals_leave_the_rank_training(reason, fields):
    rank = Rank()
    rank.step = 5
    (answer,) = rank.ask("arm", **dict({"deadline_ms": 1000}, **fields))
    assert (answer["t"], answer["reason"]) == ("nack", reason)
    assert rank.rounds.stop_at == NEVER


def test_a_rank_that_cannot_save_or_has_ended_says_so():
    assert Rank(can_save=False).arm(9)[0]["reason"] == "cannot-save"
    rank = Rank()
    rank.over = True
    assert rank.arm(9)[0]["reason"] == "out"


def test_one_round_at_a_time():
    rank = Rank()
    rank.arm(9, "a")
    assert rank.arm(9, "b")[0]["reason"] == "busy"
    rank.ask("cancel", "a")
    assert rank.arm(9, "c")[0]["t"] == "armed"
    assert rank.arm(9, "b")[0]["reason"] == "busy"  # the first answer, though it would be free now


def test_repeats_get_the_first_answer_and_save_once():
    rank = Rank()
    first = rank.arm(3)
    assert rank.arm(7) == first
    thread = rank.train(6)
    rank.until_said("held")
    assert [m["t"] for m in rank.arm(3)] == ["armed", "held"]
    rank.ask("go")
    saved = rank.until_said("saved")
    assert rank.ask("go") == [saved]
    released = rank.ask("release")
    thread.join(5)
    assert rank.ask("release") == released and rank.ask("go") == [saved]
    assert len(rank.saves) == 1


def test_cancel_frees_a_holder_and_stops_an_arm_that_comes_late():
    rank = Rank()
    rank.arm(3)
    thread = rank.train(6)
    rank.until_said("held")
    assert rank.ask("cancel")[0]["t"] == "cancelled"
    thread.join(5)
    assert rank.step == 6 and rank.saves == []
    assert rank.ask("cancel", "late")[0]["t"] == "cancelled"
    assert rank.arm(9, "late")[0]["reason"] == "cancelled"


def test_cancel_during_the_save_lets_it_finish_first():
    rank = Rank()
    rank.saving.clear()
    rank.arm(3)
    rank.ask("go")
    thread = rank.train(6)
    rank.until_said("held")
    assert rank.ask("cancel")[0]["t"] == "cancelled"
    rank.saving.set()
    thread.join(5)
    assert rank.saves == [(3, [])] and rank.step == 6


def test_a_go_or_release_of_an_unknown_round_is_refused():
    rank = Rank()
    assert rank.ask("go", "x")[0]["reason"] == "unknown"
    assert rank.ask("release", "y")[0]["reason"] == "unknown"


def test_a_holder_leaves_at_its_deadline_and_never_goes_on():
    rank = Rank()
    rank.arm(3, deadline_ms=100)
    rank.train(9).join(5)
    assert rank.step == 3 and "heard nothing" in rank.left


@pytest.mark.parametrize("deadline_ms", [0, -1, 86_400_001, 1e30, float("inf"), float("nan"), True, "5000", None])
def test_a_deadline_out_of_range_is_refused(deadline_ms):
    rank = Rank()
    (answer,) = rank.arm(3, deadline_ms=deadline_ms)
    assert (answer["t"], answer["reason"]) == ("nack", "unknown")
    rank.train(9).join(5)
    assert rank.step == 9 and rank.left is None


def test_a_rank_that_said_held_never_trains_on_because_of_an_error():
    rank = Rank()
    rank.arm(3)
    rank.rounds._changed.wait = lambda left: 1 / 0
    rank.train(9).join(5)
    assert rank.step == 3 and "division" in rank.left


def test_a_deadline_that_passed_before_the_step_still_holds():
    rank = Rank()
    rank.arm(3, deadline_ms=1)
    time.sleep(0.01)
    rank.train(9).join(5)
    assert rank.step == 3 and rank.left


def test_go_renews_the_deadline_and_a_slow_save_does_not_spend_it():
    rank = Rank()
    rank.saving.clear()
    rank.arm(3, deadline_ms=200)
    thread = rank.train(9)
    rank.until_said("held")
    for _ in range(4):
        time.sleep(0.1)
        rank.ask("go")
    rank.saving.set()
    rank.until_said("saved")
    assert rank.left is None
    for _ in range(4):
        time.sleep(0.1)
        rank.ask("go")
    assert rank.left is None
    thread.join(5)
    assert rank.left


def test_a_save_longer_than_the_deadline_leaves_the_whole_deadline_for_the_release():
    rank = Rank()
    rank.saving.clear()
    rank.arm(3, deadline_ms=300)
    rank.ask("go")
    thread = rank.train(9)
    rank.until_said("held")
    time.sleep(0.4)
    rank.saving.set()
    rank.until_said("saved")
    time.sleep(0.1)
    rank.ask("release")
    thread.join(5)
    assert rank.left is None and rank.step == 9


def test_no_step_is_missed_when_arm_and_step_race():
    """Armed means held at that step, nack means it never holds: never armed and past."""
    for _ in range(300):
        rank = Rank()
        thread = rank.train(2000)
        at_step = rank.step + 3
        (answer,) = rank.arm(at_step)
        if answer["t"] == "armed" and at_step > 2000:  # armed for a step that this thread never makes
            rank.ask("cancel")
        elif answer["t"] == "armed":
            assert rank.until_said("held")["step"] == at_step
            rank.ask("cancel")
        thread.join(5)
        assert rank.step == 2000
        assert (answer["t"] == "armed" and at_step <= 2000) == bool(rank.said)


def test_what_is_remembered_is_bounded():
    rank = Rank()
    for n in range(500):
        rank.ask("cancel", "req-%d" % n)
    assert len(rank.rounds._memory) <= 64
