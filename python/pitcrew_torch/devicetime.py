"""Times on an accelerator's own clock, without ever waiting for it.

In a measured step, events are recorded around the phases and the loss is copied aside; steps later, when a query says
that the last of them has passed, the times between them go into that step's record. Promises: nothing here calls
synchronize or reads a value that has not arrived; a device that answers with an error ends the measuring, not training.

No torch here: `torchstate.CudaDevice` brings the events, so that tests can bring a simulated device.
"""

import collections
import math
import time

from .ring import BACKWARD, COMM, FORWARD, OPTIMIZER, RECORD_DEVICE, RECORD_GRAD_NORM, RECORD_LOSS, RECORD_NOT_FINITE

PENDING = 4  # measured steps that may wait for the device
GIVE_UP = 256  # records after which a measured step is no longer waited for
MEMORY_EVERY = 10_000_000_000  # ns
WINDOW = 32  # measured steps in which the least launch latency is looked for

_NAMES = {FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer", COMM: "comm"}
_now = time.monotonic_ns


class _Sample:
    def __init__(self):
        self.sequence = 0
        self.spans = []  # (phase, begin, end, 1; -1 for a part of the phase that is another's)
        self.first = None  # (event, when it was issued)
        self.values = None  # (copy of the loss or None, of the gradient norm or None)
        self.done = None


class DeviceProbe:
    """What `phases.Phases` calls, on a device.

    `device` gives: event() (recorded now, with query() and, of two that have passed, elapsed_time(other) in
    milliseconds), recycle(events), capturing(), copy(tensor) and read(copy), memory().
    """

    def __init__(self, device, ring, trouble):
        self._device = device
        self._ring = ring
        self._trouble = trouble
        self._sample = None  # of this step; None: it is not measured
        self._open = {}
        self._gradient = None
        self._pending = collections.deque()
        self._launch = LaunchLatency()
        self._memory_read = 0
        self._dead = False
        self.busy = False  # whether `step` has to be called at a step's end

    # ---- around the phases

    def enter(self, phase):
        if self._sample is not None:
            event = self._event()
            if event is not None:
                self._open[phase] = event
                if self._sample.first is None:
                    self._sample.first = (event, _now())

    def leave(self, phase):
        if self._sample is not None and phase in self._open:
            event = self._event()
            if event is not None:
                begin = self._open.pop(phase)
                self._sample.spans.append((phase, begin, event, 1))
                around = next(reversed(self._open), None)
                if around is not None:
                    self._sample.spans.append((around, begin, event, -1))

    def gradient(self, _=None):
        if self._sample is not None:
            self._gradient = self._event()

    def waited(self):
        if self._sample is None:
            return True  # nothing was looked at
        last, self._gradient = self._gradient, None
        if last is None:
            return False
        for phase, _, end, sign in reversed(self._sample.spans):
            if phase == BACKWARD and sign > 0:
                self._sample.spans.append((COMM, last, end, 1))
                break
        return True

    def _event(self):
        try:
            if self._device.capturing():  # an event in a captured graph would be replayed with it
                self._drop()
                return None
            return self._device.event()
        except Exception as error:
            self._fail(error)
            return None

    def _drop(self):
        self._sample, self._gradient = None, None
        self._open.clear()

    def _fail(self, error):
        self._dead = True
        self._drop()
        self._pending.clear()
        self._trouble("device times end: %s: %s" % (type(error).__name__, error))

    # ---- at a step's end

    def measures(self):
        """Whether this step is one whose values are to be copied."""
        return self._sample is not None

    def values(self, loss, grad_norm):
        """Tensors on the device, or None. They are copied behind the step's own work."""
        try:
            self._sample.values = tuple(None if t is None else self._device.copy(t) for t in (loss, grad_norm))
        except Exception as error:
            self._fail(error)

    def step(self, sequence, now):
        """The step's record is written: what was measured earlier is taken, if it has arrived."""
        try:
            if self._sample is not None:
                self._sample.sequence, self._sample.done = sequence, self._device.event()
                self._pending.append(self._sample)
                self._drop()
            while self._pending and self._collect(self._pending[0], sequence):
                self._pending.popleft()
        except Exception as error:
            self._fail(error)
        self.busy = bool(self._pending)
        if self.busy:
            self._ring.settle(self._pending[0].sequence - 1)
        else:
            self._ring.settle()

    def remember(self, now):
        """Tell what the allocator holds, if that was told long ago."""
        if self._dead or now - self._memory_read < MEMORY_EVERY:
            return
        try:
            self._memory_read = now
            self._ring.memory(now, *self._device.memory())
        except Exception as error:
            self._fail(error)

    def begin(self):
        """The next step is to be measured."""
        if not self._dead and len(self._pending) < PENDING:
            self._sample = _Sample()
            if not self.busy:
                self.busy = True
                self._ring.settle(self._ring.sequence)

    def _collect(self, sample, newest):
        if newest - sample.sequence >= GIVE_UP:
            return True
        if not sample.done.query():
            return False
        flags, found, keep = RECORD_DEVICE, {}, None
        whole = {phase for phase, _, _, sign in sample.spans if sign > 0}
        for phase, begin, end, sign in sample.spans:
            if phase in whole:
                name = _NAMES[phase]
                found[name] = found.get(name, 0) + sign * max(int(begin.elapsed_time(end) * 1e6), 1)
        found = {name: max(value, 1) for name, value in found.items()}
        if sample.first is not None:
            keep = sample.first[0]
            found["launch"] = self._launch.of(*sample.first, self._device.recycle)
        for name, bit, copy in zip(("loss", "grad_norm"), (RECORD_LOSS, RECORD_GRAD_NORM), sample.values or ()):
            if copy is not None:
                found[name] = value = self._device.read(copy)
                flags |= bit
                if not math.isfinite(value):
                    self._ring.nonfinite()
                    flags |= RECORD_NOT_FINITE if name == "loss" else 0
        self._ring.amend(sample.sequence, flags, **found)
        events = {id(e): e for _, *pair, _ in sample.spans for e in pair}
        events[id(sample.done)] = sample.done
        self._device.recycle([e for e in events.values() if e is not keep])
        return True


class LaunchLatency:
    """How long work waits between being issued and being begun.

    The device's clock and this machine's differ by an unknown amount that no query tells. So the difference between the
    two times of each event is taken, and the least of the last WINDOW ones stands for an idle device, on which work
    begins at once. Two clocks that drift apart by d parts per million add at most d times the window's length.
    """

    def __init__(self):
        self._last = None  # (event, its time on the device's clock, ns)
        self._differences = collections.deque(maxlen=WINDOW)

    def of(self, event, issued, recycle):
        """Nanoseconds, at least 1. Keeps the event until the next call, since only times between events can be had."""
        at = 0
        if self._last is not None:
            before, then = self._last
            at = then + int(before.elapsed_time(event) * 1e6)
            recycle([before])
        self._last = (event, at)
        difference = at - issued
        self._differences.append(difference)
        return max(difference - min(self._differences), 1)
