"""What the parts of a step take: data wait, forward, backward, optimizer, and the wait for other ranks' gradients.

Promises: what is measured here changes nothing that is computed; in a step that is not measured no probe is in its way,
and none ever synchronises a device; copies and pickles of a model do not carry the probes; `detach` takes them away.

The probes: hooks of the root module only; torch.autograd.backward, which every `loss.backward()` calls; the optimizer's
step hooks (torch 1.13 has none: its method is wrapped); the data loader's `__next__`; and of the wait for other ranks
what `comm` says.
"""

import contextlib
import threading
import time
import types

import torch

from .comm import Collectives, LastGradient, is_compiling
from .pace import Pace
from .ring import BACKWARD, COMM, DATA, FORWARD, OPTIMIZER
from .switches import HookSwitch, Wrapper

_now = time.monotonic_ns


class HostProbe:
    """Measures on this thread's clock: right where work is done by the time its call returns, as on a CPU."""

    def __init__(self, nanoseconds):
        self._ns = nanoseconds
        self._began = [0] * 5
        self._gradient = 0

    def enter(self, phase):
        self._began[phase] = _now()

    def leave(self, phase):
        began = self._began[phase]
        if began:
            took = _now() - began
            self._ns[phase] += took
            self._began[phase] = 0  # and what it was part of, such as an optimizer's closure, is told without it:
            self._began = [other and other + took for other in self._began]

    def gradient(self, _=None):
        self._gradient = _now()

    def waited(self):
        """Backward has returned. Whether the last gradient was seen."""
        last, self._gradient = self._gradient, 0
        if last:
            self._ns[COMM] += max(_now() - last, 1)
        return bool(last)


class Phases:
    """The probes of one process, which are there in the steps that are measured. nanoseconds: five sums that the hook
    reads and clears at the end of such a step. every: the user's word of how many steps one is measured, None: as
    pace.Pace chooses."""

    def __init__(self, nanoseconds, every=None, probe=None):
        self._ns = nanoseconds
        self._probe = probe or HostProbe(nanoseconds)
        self._pace = Pace(every)
        self._switches = []
        self._undo = []
        self._thread = threading.get_ident()
        self._inside = False
        self._backward = False  # whether it runs: a reentrant checkpoint calls it again from within
        self._collectives = None
        self._last_of_optimizer = None  # the switch of what follows the optimizer, where that is a hook of it
        self.on = True

    @property
    def every(self):
        """One step of so many is measured now."""
        return self._pace.every

    def detach(self):
        self.on = False
        while self._undo:
            self._undo.pop()()

    def turn(self, done, sequence, now):
        """Step `done` has ended, with this record, at this time. The probes are put on or off for the next one; gives
        the step at whose end to call this again."""
        if self.on:
            self._pace.measured(sequence, now)
            if self._collectives is not None:
                self._collectives.unseen = False
        following = self._pace.next(done + 1)
        on = following == done + 1
        if on != self.on:
            self.on = on
            for switch in self._switches:
                switch.turn(on)
        return following if on else following - 1

    def _switched(self, handle, hook):
        switch = HookSwitch(handle, hook)
        self._switches.append(switch)
        self._undo.append(handle.remove)
        return switch

    def _wrapped(self, owner, name, make):
        wrapper = Wrapper(owner, name, make)
        wrapper.turn(self.on)
        self._switches.append(wrapper)
        self._undo.append(lambda: wrapper.turn(False))

    # ---- data

    def follow_data_loaders(self):
        """Every torch DataLoader that this thread iterates, those inside Lightning and Accelerate too."""
        from torch.utils.data import dataloader

        def make(inner):
            def __next__(iterator):
                if not self.on or self._inside or threading.get_ident() != self._thread:
                    return inner(iterator)
                self._inside = True
                began = _now()
                try:
                    return inner(iterator)
                finally:
                    self._ns[DATA] += _now() - began
                    self._inside = False

            return __next__

        self._wrapped(dataloader._BaseDataLoaderIter, "__next__", make)

    def data(self, iterable):
        iterator = iter(iterable)
        while True:
            if not self.on:
                try:
                    item = next(iterator)
                except StopIteration:
                    return
                yield item
                continue
            outermost = not self._inside
            self._inside = True
            began = _now()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                if outermost:
                    self._ns[DATA] += _now() - began
                    self._inside = False
            yield item

    # ---- forward

    def follow_forward(self, model):
        before, after = _BeforeForward(self._probe.enter), _AfterForward(self._probe.leave)
        self._switched(model.register_forward_pre_hook(before), before)
        self._switched(model.register_forward_hook(after), after)

    # ---- backward

    def follow_backward(self, model=None):
        """model: one whose gradients may be exchanged while they are computed."""
        probe = self._probe
        last = None if model is None else LastGradient(model, probe.gradient, self._switches)

        def make(inner):
            def backward(*args, **kwargs):
                if not self.on or self._backward or is_compiling() or threading.get_ident() != self._thread:
                    return inner(*args, **kwargs)
                if last is not None and not last.watching():
                    _quietly(last.learn)
                probe.enter(BACKWARD)
                self._backward = True
                try:
                    result = inner(*args, **kwargs)
                finally:
                    self._backward = False
                probe.leave(BACKWARD)
                if last is not None:
                    _quietly(last.learnt, probe.waited())
                return result

            backward.__doc__, backward.__wrapped__ = inner.__doc__, inner
            return backward

        self._wrapped(torch.autograd, "backward", make)
        if last is not None:
            self._undo.append(last.forget)

    # ---- the other ranks

    def follow_collectives(self):
        """Of a model whose ranks meet in torch.distributed's functions, which on a CPU return when the others came."""
        self._collectives = Collectives(self, self._ns, self._thread)
        for name, make in self._collectives.wrappers():
            self._wrapped(torch.distributed, name, make)

    # ---- optimizer

    def follow_optimizer(self, optimizer):
        if hasattr(optimizer, "register_step_post_hook"):
            self._switched(optimizer.register_step_pre_hook(self._before_optimizer), self._before_optimizer)
            after = optimizer.register_step_post_hook(self._after_optimizer)
            self._last_of_optimizer = self._switched(after, self._after_optimizer)
        else:
            self._wrapped(optimizer, "step", lambda inner: _around(optimizer, inner, self._enter, self._leave))

    def counted_by_optimizer(self, yes):
        """Whether steps end among the optimizer's hooks, where torch goes through them."""
        if self._last_of_optimizer is not None:
            self._last_of_optimizer.idle = _idle if yes else None

    def _before_optimizer(self, *_):
        if not is_compiling():
            self._probe.enter(OPTIMIZER)

    def _after_optimizer(self, *_):
        if not is_compiling():
            self._probe.leave(OPTIMIZER)

    def _enter(self):
        if self.on:
            self._probe.enter(OPTIMIZER)

    def _leave(self):
        if self.on:
            self._probe.leave(OPTIMIZER)


def count_steps(optimizer, counts):
    """counts() is called after each of this optimizer's steps. Gives a function that ends that."""
    if hasattr(optimizer, "register_step_post_hook"):

        def after(*_):
            if not is_compiling():
                counts()

        return optimizer.register_step_post_hook(after).remove
    wrapper = Wrapper(optimizer, "step", lambda inner: _around(optimizer, inner, None, counts))
    wrapper.turn(True)
    return lambda: wrapper.turn(False)


def _around(optimizer, inner, before, after):
    """The method with something before and after it, in a way that learning rate schedulers go on working with: they
    wrap the method too, need `__self__` and `__func__`, and look for their own mark on it (`_with_counter`)."""

    def step(_, *args, **kwargs):
        if before is not None:
            before()
        result = inner(*args, **kwargs)
        after()
        return result

    step.__dict__.update(getattr(inner, "__dict__", {}))
    return types.MethodType(step, optimizer)


class _ModuleHook:
    """A module's hook that no copy or pickle of the module takes along, and that a traced graph leaves out."""

    def __init__(self, probe):
        self._probe = probe

    def __reduce__(self):
        return (_no_probe, ())


class _BeforeForward(_ModuleHook):
    def __call__(self, module, inputs):
        if not is_compiling() and torch.is_grad_enabled():
            self._probe(FORWARD)


class _AfterForward(_ModuleHook):
    def __call__(self, module, inputs, output):
        if not is_compiling():
            self._probe(FORWARD)


def _no_probe():
    return _nothing


def _nothing(*_):
    return None


def _idle(optimizer, args, kwargs):
    return None


def _quietly(call, *args):
    """What goes wrong in looking must not end training."""
    with contextlib.suppress(Exception):
        call(*args)
