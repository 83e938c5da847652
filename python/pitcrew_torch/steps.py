"""The training thread's part of the hook: a step has ended, its record is written.

Promises: no system call, no lock, no wait for a device, no exception into training. What a common step does is kept
short and in one function, since between two steps training empties the processor's caches, where each call, object and
line costs anew: a step that is not measured and ends with a plain, finite loss or none takes what `_stepper` makes; all
else goes through `Steps.whole`.

No torch here.
"""

import math
import time

from .ring import (
    FLAG_TOKENS,
    HEADER_SIZE,
    ORDERED,
    PLAIN,
    PLAIN_LOSS,
    RECORD_GRAD_NORM,
    RECORD_LOSS,
    RECORD_NOT_FINITE,
    RECORD_SIZE,
    RECORDS,
    STEP,
    STEP_NS,
    pack_plain,
)
from .rounds import NEVER

_now = time.monotonic_ns
_infinity = math.inf
_NOTHING = (0,) * 5
LOOK = 64  # steps, after which measuring is thought of again at the latest


def _own(value):
    """The value as a plain tensor or float where this rank has it: a DTensor's other parts would be fetched from other
    ranks, and a rank that does not come then ends training for all. None where it has only a part."""
    placements = getattr(value, "placements", None)
    if placements is None:
        return value
    return value.to_local() if all(placement.is_replicate() for placement in placements) else None


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


def _count(value, otherwise=0):
    """The value as a whole number, the other one where only a device knows it."""
    if _on_device(value):
        return otherwise
    number = int(value)
    if not 0 <= number < 1 << 63:
        raise ValueError("%d is no count" % number)
    return number


def _stepper(steps, ring, rounds):
    """The function that training calls at a step's end, see `pitcrew_torch.step`."""
    clock, pack, raw, words, mask = _now, pack_plain, ring.raw.obj, ring.words, ring.capacity - 1
    ordered, release, acquire, zero = ORDERED, ring.release, ring.acquire, 0

    def step(loss=None, step=None, grad_norm=None, samples=0, tokens=0):
        try:
            now = clock()
            if (
                not steps.plain
                or step is not None
                or grad_norm is not None
                or (samples is not zero and type(samples) is not int)
                or (tokens is not zero and (type(tokens) is not int or not steps.tokens))
            ):
                steps.whole(now, loss, step, grad_norm, samples, tokens)
                return
            if type(loss) is float and loss - loss == 0.0:  # neither infinite nor not a number
                kind = PLAIN_LOSS
            elif loss is None:
                kind, loss = PLAIN, 0.0
            else:
                steps.whole(now, loss, step, grad_norm, samples, tokens)
                return
            done = steps.done + 1
            sequence = ring.sequence  # from here on as Ring.record does it
            offset = HEADER_SIZE + (sequence & mask) * RECORD_SIZE
            ring.sequence = sequence = sequence + 1
            at = offset >> 3
            words[at] = 0
            pack(raw, offset, now, done, kind, now - steps.last, loss, tokens or samples)
            words[at] = sequence
            steps.last = now
            steps.done = done
            if not ordered:  # ring.fence: between the record and its count, and our count of steps and rounds.stop_at
                try:
                    release()
                except RuntimeError:
                    pass
                acquire(False)
            words[RECORDS] = sequence
            words[STEP_NS] = now
            words[STEP] = done
            if done >= steps.wake or done >= rounds.stop_at:
                steps.ended(done, now)
        except Exception as error:
            steps.failed(now, error)

    return step


class Steps:
    """Counts a rank's steps. save(step) is called at the end of the step `save_at`, hold(step) when an agent holds the
    rank there (`rounds.stop_at`), trouble(error) with what went wrong."""

    __slots__ = (
        "_device", "_hold", "_over", "_probes", "_ring", "_rounds", "_save", "_save_at", "_trouble", "_turn_at",
        "done", "instead", "last", "phases", "plain", "section", "step", "tokens", "wake",
    )  # fmt: skip

    def __init__(self, ring, rounds, section, save, hold, trouble):
        self._ring = ring
        self._rounds = rounds
        self._save, self._hold, self._trouble = save, hold, trouble
        self.section = section
        self.done = 0
        self.last = _now()  # when the step before ended, later where something else came between
        self.phases = [0] * 5  # ns of this step so far, in the order of ring.DATA ... ring.COMM
        self.tokens = False  # whether the ring says that tokens are counted
        self.instead = None  # takes the calls of `step` that come when training is over here
        self._over = False
        self._probes = None
        self._device = None
        self._save_at = NEVER
        self._turn_at = NEVER  # the step at whose end to think of measuring the next
        self._replan()
        self.step = _stepper(self, ring, rounds)

    def _replan(self):
        self.wake = min(self._save_at, self._turn_at)
        self.plain = (
            self.section == "step"
            and not self._over
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
        if self._over:
            return
        self.section = name
        self._ring.section(name, _now())
        self._replan()

    def resumed(self, step):
        """Training goes on from this step, now."""
        self.done, self.last = step, _now()
        if self._probes is not None:
            self._turn_at = 0
        self._replan()

    def close(self):
        """Training is over here."""
        self.enter("out")
        self.leave()

    def leave(self):
        """From now on nothing is written here: training is over, or the ring is that of the process before the fork."""
        self._over = True
        self._replan()

    def failed(self, now, error):
        """Something given to `step` could not be recorded. That costs what was given, never the step: ranks that count
        differently would not hold at one."""
        self._trouble(error)
        if self.last != now:
            try:
                self.whole(now, None, None, None, 0, 0)
            except Exception as again:
                self._trouble(again)

    def whole(self, now, loss, step, grad_norm, samples, tokens):
        """Any step's end."""
        if self._over:
            if self.instead is not None:
                self.instead(loss, step, grad_norm, samples, tokens)
            return
        tokens, samples = _count(tokens), _count(samples)
        if tokens and not self.tokens:
            self.tokens = True
            self._ring.flag(FLAG_TOKENS)
        device, probes = self._device, self._probes
        loss, grad_norm = _own(loss), _own(grad_norm)
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
        done = expected if step is None else _count(step, expected)
        measured = probes is None or probes.on
        sequence = self._ring.record(
            done, now, now - self.last, 1, flags, value or 0.0, norm or 0.0, tokens or samples,
            self.phases if measured else None,
        )  # fmt: skip
        if measured:
            self.phases[:] = _NOTHING
        self.last = now
        self.done = done
        self._ring.fence()  # rounds.stop_at is read below
        if done != expected and probes is not None:
            self._turn_at = 0
            self._replan()
        if device is not None and device.busy:
            device.step(sequence, now)
            if not device.busy:
                self._replan()
        if done >= self.wake or done >= self._rounds.stop_at:
            self.ended(done, now)

    def ended(self, done, now):
        """Step `done`, at whose end more is to be done than to record it."""
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
