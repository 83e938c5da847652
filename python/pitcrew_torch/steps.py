"""The training thread's part of the hook: a step has ended, its record is written.

Promises: no system call, no lock, no wait for a device, no exception into training. What a common step does is kept
short and in one place, since between two steps training empties the processor's caches and each line costs anew: a step
that is not measured and ends with a plain, finite loss takes `step` alone; all else goes through `_whole`.

No torch here.
"""

import math
import time

from .ring import RECORD_GRAD_NORM, RECORD_LOSS, RECORD_NOT_FINITE
from .rounds import NEVER

_now = time.monotonic_ns
_infinity = math.inf
_NOTHING = (0,) * 5
LOOK = 64  # steps, after which measuring is thought of again at the latest


def _on_device(value):
    device = getattr(value, "device", None)
    return device is not None and device.type != "cpu"


def _there(value):
    """The value if it lives on a device, else None."""
    return value if _on_device(value) else None


def _here(value):
    """The value as a float, or None for one that only a device knows yet: reading it would wait."""
    if value is None or _on_device(value):
        return None
    return float(value.item() if hasattr(value, "item") else value)  # torch warns of float() on what has a gradient


class Steps:
    """Counts a rank's steps. save(step) is called at the end of the step `save_at`, hold(step) when an agent holds the
    rank there (`rounds.stop_at`), trouble(error) with what went wrong."""

    __slots__ = (
        "_device", "_hold", "_plain", "_probes", "_record", "_ring", "_rounds", "_save", "_save_at", "_trouble",
        "_turn_at", "_wake", "done", "last", "phases", "section",
    )  # fmt: skip

    def __init__(self, ring, rounds, section, save, hold, trouble):
        self._ring = ring
        self._record = ring.record
        self._rounds = rounds
        self._save, self._hold, self._trouble = save, hold, trouble
        self.section = section
        self.done = 0
        self.last = _now()  # when the step before ended, later where something else came between
        self.phases = [0] * 5  # ns of this step so far, in the order of ring.DATA ... ring.COMM
        self._probes = None
        self._device = None
        self._save_at = NEVER
        self._turn_at = NEVER  # the step at whose end to think of measuring the next
        self._replan()

    def _replan(self):
        self._wake = min(self._save_at, self._turn_at)
        self._plain = (
            self.section == "step"
            and not (self._probes is not None and self._probes.on)
            and not (self._device is not None and self._device.busy)
        )

    @property
    def device(self):
        """A devicetime.DeviceProbe where training runs on an accelerator."""
        return self._device

    @device.setter
    def device(self, device):
        self._device = device
        self._replan()

    @property
    def probes(self):
        """The phases.Phases, where they are measured."""
        return self._probes

    @probes.setter
    def probes(self, probes):
        self._probes, self._turn_at = probes, 0
        self._replan()

    @property
    def save_at(self):
        return self._save_at

    @save_at.setter
    def save_at(self, step):
        self._save_at = step
        self._replan()

    def enter(self, name):
        self.section = name
        self._ring.section(name, _now())
        self._replan()

    def resumed(self, step):
        """Training goes on from this step, now."""
        self.done, self.last = step, _now()
        if self._probes is not None:
            self._turn_at = 0
        self._replan()

    def step(self, loss=None, step=None, grad_norm=None, samples=0):
        """A training step has ended. See `pitcrew_torch.step`."""
        try:
            now = _now()
            if (
                not self._plain
                or type(loss) is not float
                or step is not None
                or grad_norm is not None
                or loss - loss != 0.0  # it is infinite or not a number
            ):
                self._whole(now, loss, step, grad_norm, samples)
                return
            done = self.done + 1
            self._record(done, now, now - self.last, 1, RECORD_LOSS, loss, 0.0, samples)
            self.last = now
            self.done = done
            if done >= self._wake or done >= self._rounds.stop_at:
                self._ended(done, now)
        except Exception as error:
            self._trouble(error)

    def _whole(self, now, loss, step, grad_norm, samples):
        device, probes = self._device, self._probes
        if device is not None and device.measures():
            device.values(_there(loss), _there(grad_norm))
        value, norm = _here(loss), _here(grad_norm)
        flags = 0
        for given, valid, broken in ((value, RECORD_LOSS, RECORD_NOT_FINITE), (norm, RECORD_GRAD_NORM, 0)):
            if given is not None:
                flags |= valid
                if not -_infinity < given < _infinity:
                    flags |= broken
                    self._ring.nonfinite()
        if self.section != "step":
            self.enter("step")
        expected = self.done + 1
        done = expected if step is None else step
        measured = probes is None or probes.on
        sequence = self._record(
            done, now, now - self.last, 1, flags, value or 0.0, norm or 0.0, samples, self.phases if measured else None
        )
        if measured:
            self.phases[:] = _NOTHING
        self.last = now
        self.done = done
        if done != expected and probes is not None:
            self._turn_at = 0
            self._replan()
        if device is not None and device.busy:
            device.step(sequence, now)
            if not device.busy:
                self._replan()
        if done >= self._wake or done >= self._rounds.stop_at:
            self._ended(done, now)

    def _ended(self, done, now):
        if done >= self._turn_at:
            sequence = self._ring.sequence
            device = self._device
            if device is not None:
                device.remember(now)
            self._turn_at = min(self._probes.turn(done, sequence, now), done + LOOK)
            if self._probes.on and device is not None:
                device.begin()
            self._replan()
        if done >= self._save_at:
            self._save(done)
        if done >= self._rounds.stop_at:
            self._hold(done)
