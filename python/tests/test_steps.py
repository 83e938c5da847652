"""A step's end on the training thread: the short way and the whole one write the same."""

import resource
import types

import pytest

import pitcrew_torch as pitcrew
from pitcrew_torch import ring, steps
from pitcrew_torch.hook import Hook
from pitcrew_torch.rounds import NEVER
from pitcrew_torch.side import Side


class Rank:
    """Steps on a ring of four records by the test's own clock; `whole` counts those that went the whole way."""

    def __init__(self, monkeypatch):
        self.clock, self.whole, self.trouble, self.held = 1000, 0, [], []
        monkeypatch.setattr(steps, "_now", lambda: self.clock)
        self.rounds = types.SimpleNamespace(stop_at=NEVER)
        self.ring = ring.Ring.create(None, capacity=4, clock=lambda: 0, wall=lambda: 0, pid=1)
        inner = steps.Steps.whole

        def whole(*values):
            self.whole += 1
            inner(*values)

        monkeypatch.setattr(steps.Steps, "whole", whole)
        self.steps = steps.Steps(self.ring, self.rounds, "step", None, self.held.append, self.trouble.append)
        self.ring.section("step", 0)

    def step(self, *given, **named):
        self.clock += 500
        self.steps.step(*given, **named)
        assert self.trouble == []
        return ring.parse(bytes(self.ring.raw))["header"]


@pytest.fixture
def rank(monkeypatch):
    return Rank(monkeypatch)


@pytest.mark.parametrize(
    "given",
    [{}, {"loss": 0.5}, {"loss": -1e300, "samples": 7}, {"samples": 1 << 40}, {"loss": 0.0, "tokens": 9, "samples": 3}],
    ids=str,
)
def test_the_short_way_writes_what_the_ring_would(rank, given):
    other = ring.Ring.create(None, capacity=4, clock=lambda: 0, wall=lambda: 0, pid=1)
    other.section("step", 0)
    rank.steps.tokens = True
    for r in (rank.ring, other):  # what is written over must leave nothing behind
        for n in range(1, 5):
            r.record(n, n, n, 6, 15, 1.5, 2.5, 99, (1, 2, 3, 4, 5))
            r.amend(n, launch=6)
    rank.steps.done = 4
    for _ in range(6):
        rank.step(**given)
    assert rank.whole == 0
    loss = given.get("loss")
    for n in range(6):
        other.record(
            5 + n, 1500 + 500 * n, 500, 1, 0 if loss is None else ring.RECORD_LOSS, loss or 0.0, 0.0,
            given.get("tokens") or given.get("samples", 0),
        )  # fmt: skip
    assert bytes(rank.ring.raw) == bytes(other.raw)


@pytest.mark.parametrize(
    "given", [{"loss": 1}, {"loss": float("nan")}, {"loss": float("inf")}, {"grad_norm": 1.0}, {"step": 1}], ids=str
)
def test_what_is_not_plain_goes_the_whole_way(rank, given):
    header = rank.step(**given)
    assert (rank.whole, header["step"], header["records"]) == (1, 1, 1)


@pytest.mark.parametrize(
    "given",
    [
        {"loss": "half"}, {"loss": 1j}, {"loss": [0.5, 0.5]}, {"grad_norm": object()}, {"tokens": -1},
        {"samples": 1 << 64}, {"samples": "many"}, {"tokens": float("nan")}, {"step": -3}, {"step": "next"},
        {"loss": 0.5, "samples": -1},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_recorded_costs_the_value_and_never_the_step(rank, given):
    rank.clock += 500
    rank.steps.step(**given)
    assert len(rank.trouble) == 1
    rank.trouble.clear()
    header = rank.step(0.5)
    assert header["step"] == 2 and rank.steps.done == 2
    last = ring.parse(bytes(rank.ring.raw))["records"][-1]
    assert (last["step"], last["duration_ns"], last["loss"]) == (2, 500, 0.5)


def test_numbers_of_other_kinds_are_counts_too(rank):
    header = rank.step(0.5, samples=3.0, step=7.0)
    assert header["step"] == 7 and type(rank.steps.done) is int
    assert ring.parse(bytes(rank.ring.raw))["records"][-1]["samples"] == 3


class OnADevice:
    """Asking it for its value waits for the device."""

    device = types.SimpleNamespace(type="cuda")

    def __bool__(self):
        raise AssertionError("the device is waited for")

    __int__ = __index__ = __float__ = item = __bool__


@pytest.mark.parametrize("given", [{"tokens": OnADevice()}, {"samples": OnADevice()}, {"step": OnADevice()}], ids=list)
def test_a_count_that_only_a_device_knows_is_not_asked_for(rank, given):
    for n in range(1, 4):
        assert rank.step(0.5, **given)["step"] == n


def test_a_section_that_outlasts_the_hook_says_nothing_more():
    hook = Hook(environ={})
    with hook.section("eval"):
        hook.close()
    assert ring.parse(bytes(hook.ring.raw))["header"]["section_name"] == "out"


def test_a_step_that_an_agent_armed_holds_on_the_short_way_too(rank):
    rank.rounds.stop_at = 2
    rank.step(0.5)
    assert rank.held == []
    rank.step(0.5)
    assert (rank.whole, rank.held) == (0, [2])


def test_tokens_are_flagged_once_and_then_cost_nothing_more(rank):
    assert not rank.step(0.5, samples=1)["flags"] & ring.FLAG_TOKENS
    assert rank.step(0.5, tokens=2)["flags"] & ring.FLAG_TOKENS and rank.whole == 1
    rank.step(0.5, tokens=3)
    assert rank.whole == 1
    assert [x["samples"] for x in ring.parse(bytes(rank.ring.raw))["records"]] == [1, 2, 3]


def test_training_does_not_wait_for_the_pages_of_its_ring(tmp_path):
    r = ring.Ring.create(str(tmp_path / "local-0.ring"))
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for n in range(ring.CAPACITY):
        r.record(n, n, 1)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 8  # of 32 pages


def test_a_function_that_somebody_kept_reaches_the_hook_that_came_after(monkeypatch):
    def attach():
        hook = Hook(environ={})
        hook.steps.instead = lambda *values: pitcrew._instead_of(hook, *values)
        monkeypatch.setattr(pitcrew, "_hook", hook)
        monkeypatch.setattr(pitcrew, "_step", pitcrew._first_step)
        return hook

    unattached = pitcrew.step
    first = attach()
    unattached(0.5)
    kept = pitcrew.step
    assert kept is first.step and first.step_count == 1
    pitcrew.detach()
    assert pitcrew.step is unattached
    kept(0.5)
    assert first.step_count == 1 and ring.parse(bytes(first.ring.raw))["header"]["section_name"] == "out"
    second = attach()
    for call in (kept, unattached, pitcrew.step):
        call(0.5)
    assert (first.step_count, second.step_count) == (1, 3)
    second.close()  # without detach, as at a process's end
    pitcrew.step(0.5)
    assert second.step_count == 3 and second.ring.words[ring.HEADER["last_error"][0] // 8] == 0
    pitcrew.detach()


def test_a_side_thread_that_has_ended_is_told_nothing_more():
    side = Side(None, dict, print, print)
    side.start()
    assert side.flush(10)
    side.stop()
    side.join(10)
    assert not side.is_alive() and not side.flush(10)


@pytest.mark.parametrize("ordered", [True, False])
def test_each_step_has_its_fence_where_the_machine_does_not_order_stores(monkeypatch, ordered):
    fences = []
    for module in (steps, ring):
        monkeypatch.setattr(module, "ORDERED", ordered)

    class Watched(ring.Ring):
        __slots__ = ()

        def __init__(self, *args):
            super().__init__(*args)
            acquire = self.acquire
            self.acquire = lambda *args: fences.append(self.words[ring.RECORDS]) or acquire(*args)

    monkeypatch.setattr(ring, "Ring", Watched)
    rank = Rank(monkeypatch)
    rank.step(0.5)  # the short way: `records` follows the fence
    rank.step(0.5, grad_norm=1.0)  # the whole way, which has another before it reads rounds.stop_at
    assert fences == ([] if ordered else [0, 1, 2]) and rank.whole == 1
