"""What the parts of a step take: data wait, forward, backward, optimizer, and the wait for other ranks' gradients.

Promises: what is measured here changes nothing that is computed; each probe costs well under 2 microseconds a step and
none synchronises a device; copies and pickles of a model do not carry the probes; `detach` takes them away.

The probes: hooks of the root module only; torch.autograd.backward, which every `loss.backward()` calls; the optimizer's
step hooks (torch 1.13 has none: its method is wrapped); the data loader's `__next__`; and the gradient of one
parameter, the last to get its gradient in a backward pass, as the first pass shows: from then until backward returns,
this rank only waits for the others.
"""

import contextlib
import threading
import time
import types

import torch

from .ring import BACKWARD, COMM, DATA, FORWARD, OPTIMIZER

try:
    from torch.compiler import is_compiling  # torch >= 2.1: folded to a constant while a graph is traced
except ImportError:

    def is_compiling():
        return False


EVERY = 4
RELEARN = 4  # times the last parameter is looked for again when it got no gradient

_now = time.monotonic_ns


class HostProbe:
    """Measures on this thread's clock: right where work is done by the time its call returns, as on a CPU."""

    every = None  # as the user says

    def __init__(self, nanoseconds):
        self._ns = nanoseconds
        self._began = [0] * 5
        self._gradient = 0

    def enter(self, phase):
        self._began[phase] = _now()

    def leave(self, phase):
        began = self._began[phase]
        if began:
            self._ns[phase] += _now() - began
            self._began[phase] = 0

    def gradient(self, _=None):
        self._gradient = _now()

    def waited(self):
        """Backward has returned. Whether the last gradient was seen."""
        last, self._gradient = self._gradient, 0
        if last:
            self._ns[COMM] += max(_now() - last, 1)
        return bool(last)


class Phases:
    """The probes of one process. nanoseconds: five sums that the hook reads and clears at each step. every: in one of
    how many steps to measure, which by the step's number is the same one on all ranks; data wait is always measured."""

    def __init__(self, nanoseconds, every=EVERY, probe=None):
        self._ns = nanoseconds
        self._probe = probe or HostProbe(nanoseconds)
        self._every = every
        self._switches = []
        self._undo = []
        self._thread = threading.get_ident()
        self._inside = False
        self.on = True

    def detach(self):
        while self._undo:
            self._undo.pop()()

    def turn(self, step):
        """The next step has this number: probes are on or off in it."""
        on = step % (self._probe.every or self._every) == 0
        if on != self.on:
            self.on = on
            for switch in self._switches:
                switch.turn(on)
        return on

    def _switched(self, handle, hook):
        switch = _Switch(handle, hook)
        self._switches.append(switch)
        self._undo.append(handle.remove)
        return switch

    # ---- data

    def follow_data_loaders(self):
        """Every torch DataLoader that this thread iterates, those inside Lightning and Accelerate too."""
        from torch.utils.data import dataloader

        kind = dataloader._BaseDataLoaderIter
        inner = kind.__next__

        def __next__(iterator):
            if self._inside or threading.get_ident() != self._thread:
                return inner(iterator)
            self._inside = True
            began = _now()
            try:
                return inner(iterator)
            finally:
                self._ns[DATA] += _now() - began
                self._inside = False

        kind.__next__ = __next__
        self._undo.append(lambda: _restore(kind, "__next__", __next__, inner))

    def data(self, iterable):
        iterator = iter(iterable)
        while True:
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

    def follow_backward(self, parameters=()):
        """parameters: of a model whose gradients are exchanged while they are computed; () where none are."""
        inner = torch.autograd.backward
        probe = self._probe
        last = _LastGradient(list(parameters), probe.gradient, self._switches) if parameters else None

        def backward(*args, **kwargs):
            if not self.on or is_compiling() or threading.get_ident() != self._thread:
                return inner(*args, **kwargs)
            if last is not None and not last.watching():
                _quietly(last.learn)
            probe.enter(BACKWARD)
            result = inner(*args, **kwargs)
            probe.leave(BACKWARD)
            if last is not None:
                _quietly(last.learnt, probe.waited())
            return result

        backward.__doc__, backward.__wrapped__ = inner.__doc__, inner
        torch.autograd.backward = backward
        self._undo.append(lambda: _restore(torch.autograd, "backward", backward, inner))
        if last is not None:
            self._undo.append(last.forget)

    # ---- optimizer

    def follow_optimizer(self, optimizer, counts):
        """counts(), if any, is called after each of this optimizer's steps."""
        if hasattr(optimizer, "register_step_post_hook"):
            self._switched(optimizer.register_step_pre_hook(self._before_optimizer), self._before_optimizer)
            after = self._after_optimizer if counts is None else lambda *_: self._count(counts)
            handle = optimizer.register_step_post_hook(after)
            if counts is None:
                self._switched(handle, after)
            else:
                self._undo.append(handle.remove)
        else:
            self._wrap(optimizer, counts)

    def _before_optimizer(self, *_):
        if not is_compiling():
            self._probe.enter(OPTIMIZER)

    def _after_optimizer(self, *_):
        if not is_compiling():
            self._probe.leave(OPTIMIZER)

    def _count(self, counts):
        if not is_compiling():
            if self.on:
                self._probe.leave(OPTIMIZER)
            counts()

    def _wrap(self, optimizer, counts):
        """In a way that learning rate schedulers go on working with: they wrap the method too, need `__self__` and
        `__func__`, and look for their own mark on it (`_with_counter`)."""
        inner = optimizer.step

        def step(_, *args, **kwargs):
            if self.on:
                self._probe.enter(OPTIMIZER)
            result = inner(*args, **kwargs)
            if self.on:
                self._probe.leave(OPTIMIZER)
            if counts is not None:
                counts()
            return result

        step.__dict__.update(getattr(inner, "__dict__", {}))
        wrapper = types.MethodType(step, optimizer)
        optimizer.step = wrapper
        self._undo.append(lambda: _restore(optimizer, "step", wrapper, inner))


class _Switch:
    """Turns a registered hook off and on again, for less than registering it anew costs."""

    def __init__(self, handle, hook):
        self._hooks, self._id, self._hook = handle.hooks_dict_ref(), handle.id, hook

    def turn(self, on):
        if on:
            self._hooks[self._id] = self._hook
        else:
            self._hooks.pop(self._id, None)


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


class _LastGradient:
    """Watches the parameter that is the last to get its gradient. The first backward pass tells which that is."""

    def __init__(self, parameters, seen, switches):
        self._parameters = parameters
        self._seen = seen
        self._switches = switches
        self._switch = None
        self._handles = []
        self._found = False
        self._last = None
        self._tries = 1 + RELEARN

    def watching(self):
        return self._found or self._tries == 0

    def learn(self):
        self._tries -= 1
        self.forget()
        self._last = None
        for parameter in self._parameters:
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._learner(parameter)))

    def _learner(self, parameter):
        def hook(_):
            self._last = parameter

        return hook

    def learnt(self, seen):
        if self._found:
            if not seen:  # another path through the model: look again
                self._found = False
            return
        self.forget()
        if self._last is not None:
            self._found = True
            self._handles.append(self._last.register_hook(self._seen))
            self._switch = _Switch(self._handles[0], self._seen)
            self._switches.append(self._switch)

    def forget(self):
        if self._switch is not None:
            self._switches.remove(self._switch)
            self._switch = None
        while self._handles:
            self._handles.pop().remove()


def _quietly(call, *args):
    """What goes wrong in looking must not end training."""
    with contextlib.suppress(Exception):
        call(*args)


def _restore(owner, name, ours, inner):
    """Put back what was there, unless somebody has wrapped ours since: then it stays, and does no harm."""
    if getattr(owner, name, None) == ours:
        setattr(owner, name, inner)
