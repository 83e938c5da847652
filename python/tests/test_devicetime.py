"""Times on a device's own clock. SIMULATED: the device. Its queue runs behind the issuing thread, its clock has another
origin, and whoever waits for it fails the test. On a real GPU this has not been run (docs/training.md)."""

import math

import pytest

from pitcrew_torch import devicetime, ring
from pitcrew_torch.ring import BACKWARD, FORWARD, OPTIMIZER

MS = 1_000_000


class Device:
    """Work is issued in no time and takes time; `behind` is how far the queue runs ahead of what is done."""

    def __init__(self):
        self.host = 1_000 * MS  # ns
        self.busy_until = self.host
        self.free, self.capture, self.broken, self.made = [], False, False, 0

    def now(self):
        return self.host

    def work(self, ms):
        self.busy_until = max(self.busy_until, self.host) + int(ms * MS)

    def passes(self, ms):
        self.host += int(ms * MS)

    def event(self):
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        event = self.free.pop() if self.free else Event(self)
        self.made += event.at is None
        event.at = max(self.busy_until, self.host)
        return event

    def recycle(self, events):
        assert not set(map(id, events)) & set(map(id, self.free)), "an event is given back twice"
        self.free.extend(events)

    def capturing(self):
        return self.capture

    def copy(self, tensor):
        return [tensor, max(self.busy_until, self.host)]

    def read(self, copy):
        assert self.host >= copy[1], "a value is read that has not arrived"
        return copy[0]

    def memory(self):
        return 10, 20, 30, 1


class Event:
    def __init__(self, device):
        self.device, self.at = device, None

    def query(self):
        return self.device.host >= self.at

    def elapsed_time(self, other):
        assert self.query() and other.query(), "an elapsed time is asked for that is not known yet"
        return (other.at + 0.0 - self.at) / MS

    def synchronize(self):
        raise AssertionError("training waits for the device")


@pytest.fixture
def rig(monkeypatch):
    device, trouble = Device(), []
    monkeypatch.setattr(devicetime, "_now", device.now)
    r = ring.Ring.create(None)
    probe = devicetime.DeviceProbe(device, r, trouble.append)
    probe.trouble = trouble

    def step(number, measured=True, loss=None, forward=2.0, backward=3.0, wait=1.0, took=8.0):
        if measured:
            probe.begin()
        for phase, ms in ((FORWARD, forward), (BACKWARD, backward), (OPTIMIZER, 0.5)):
            probe.enter(phase)
            device.work(ms)
            if phase == BACKWARD:
                probe.gradient()
                device.work(wait)
            probe.leave(phase)
            if phase == BACKWARD:
                probe.waited()
        if probe.measures():
            probe.values(loss, None)
        device.passes(took)
        probe.step(r.record(number, device.host, int(took * MS)), device.host)

    return device, probe, r, step


def records(r):
    found = ring.parse(bytes(r._buffer))
    return found["header"], {x["step"]: x for x in found["records"]}


def test_a_measured_step_gets_the_devices_times_when_they_have_arrived(rig):
    _device, _probe, r, step = rig
    step(1, loss=0.5, took=0.1)  # the device is 6.5 ms behind
    header, found = records(r)
    assert (header["settled"], found[1]["forward_ns"]) == (0, 0)
    step(2, measured=False, took=20)
    header, found = records(r)
    assert header["settled"] == ring.ALL
    one = found[1]
    assert [one[n] for n in ("forward_ns", "backward_ns", "comm_ns", "optimizer_ns")] == [2 * MS, 4 * MS, MS, MS // 2]
    assert one["loss"] == 0.5 and one["flags"] == ring.RECORD_DEVICE | ring.RECORD_LOSS
    assert found[2]["forward_ns"] == 0 and found[2]["flags"] == 0


def test_launch_latency_is_how_far_the_device_is_behind_above_its_least(rig):
    _device, _probe, r, step = rig
    step(1, took=50)  # an idle device
    step(2, measured=False, took=0.1)  # issues 6.5 ms of work in 0.1 ms
    step(3, took=50)
    step(4, took=50)
    _, found = records(r)
    latency = {n: found[n]["launch_ns"] / MS for n in (1, 3, 4)}
    assert latency[1] < 0.01 and abs(latency[3] - 6.4) < 0.01 and latency[4] < 0.01, latency


def test_clocks_that_drift_apart_add_little_to_it(rig):
    _device, _probe, r, step = rig
    real = Device.event
    Device.event = lambda self: _drifting(real(self), self.host)
    try:
        for n in range(1, 200):
            step(n, took=100)
    finally:
        Device.event = real
    _, found = records(r)
    worst = max(x["launch_ns"] for x in found.values()) / MS
    assert worst < 50e-6 * 100 * devicetime.WINDOW * 1.1, worst  # drift, step, window


def _drifting(event, host):
    event.at += int(host * 50e-6)
    return event


def test_what_runs_inside_another_phase_is_not_told_twice(rig):
    """An optimizer's closure, in whose backward pass a forward is repeated."""
    device, probe, r, _step = rig
    probe.begin()
    within = [(OPTIMIZER, 1), (BACKWARD, 3), (FORWARD, 2)]
    for phase, ms in within:
        probe.enter(phase)
        device.work(ms)
    for phase, _ in reversed(within):
        probe.leave(phase)
        if phase == BACKWARD:
            probe.waited()
    probe.step(r.record(1, device.host, MS), device.host)
    device.passes(20)
    probe.step(r.record(2, device.host, MS), device.host)
    one = records(r)[1][1]
    assert [one[n] for n in ("optimizer_ns", "backward_ns", "forward_ns")] == [MS, 3 * MS, 2 * MS]


def test_events_are_used_again(rig):
    device, _probe, _r, step = rig
    for n in range(1, 100):
        step(n, took=50)
    assert device.made <= 20


def test_a_loss_that_is_not_finite_is_counted_when_it_is_read(rig):
    _device, _probe, r, step = rig
    step(1, loss=math.nan, took=50)
    step(2, measured=False)
    header, found = records(r)
    assert header["nonfinite"] == 1 and found[1]["flags"] & ring.RECORD_NOT_FINITE


def test_memory_is_read_seldom(rig):
    device, probe, r, step = rig
    asked = []
    device.memory = lambda: asked.append(1) or (10, 20, 30, 1)
    for n in range(1, 301):
        step(n, took=100)
        probe.remember(device.host)
    assert len(asked) == 3  # in 30 s
    header, _ = records(r)
    assert [header["memory_" + n] for n in ("allocated", "reserved", "peak", "retries")] == [10, 20, 30, 1]


def test_a_device_that_hangs_keeps_few_events_and_later_steps_are_settled(rig):
    device, _probe, r, step = rig
    device.busy_until = device.host + 10**15
    for n in range(1, 400):
        step(n)
    header, _ = records(r)
    assert device.made < 100
    assert 0 < header["settled"] < 399


def test_an_error_of_the_device_ends_the_measuring_and_not_training(rig):
    device, probe, r, step = rig
    step(1)
    device.broken = True
    for n in range(2, 9):
        step(n)
    header, _ = records(r)
    assert header["settled"] == ring.ALL and len(probe.trouble) == 1 and "illegal memory" in probe.trouble[0]


def test_nothing_is_recorded_into_a_graph_that_is_captured(rig):
    device, _probe, r, step = rig
    device.capture = True
    step(1)
    step(2)
    assert device.made == 0 and not records(r)[1][1]["flags"]
