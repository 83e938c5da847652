"""The wait for other ranks: how much of a step this rank only stands and lets them catch up.

Data-parallel training waits in one place: from the gradient that comes last in a backward pass, as the first pass
shows, until backward returns (`LastGradient`, docs/decisions/0010). FSDP waits wherever it gathers parameters or
scatters gradients, by functions of torch.distributed's public interface that return on a CPU when the other ranks have
come (`Collectives`, docs/decisions/0019).
"""

import gc
import threading
import time

import torch

from .ring import COMM
from .switches import HookSwitch

RELEARN = 4  # times the last parameter is looked for again when it got no gradient

# What FSDP of either kind calls, by the names of several versions of torch: those that are there are followed.
COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
)

_now = time.monotonic_ns

try:
    from torch.compiler import is_compiling  # torch >= 2.1: folded to a constant while a graph is traced
except ImportError:

    def is_compiling():
        return False


def _by_ddp(model):
    """Whether a DistributedDataParallel trains the model: it is one, has one in it, or is in one that its user does not
    hold, which is looked for among all objects there are. Other ways of training on several ranks wait elsewhere."""
    ddp = torch.nn.parallel.DistributedDataParallel
    if any(isinstance(module, ddp) for module in model.modules()):
        return True
    kinds, ours = {ddp, *ddp.__subclasses__()}, {id(parameter) for parameter in model.parameters()}
    there = [each for each in gc.get_objects() if type(each) in kinds]
    return any(id(parameter) in ours for each in there for parameter in each.parameters())


class LastGradient:
    """Watches the parameter that is the last to get its gradient. The first backward pass tells which that is."""

    def __init__(self, model, seen, switches):
        self._model = model
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
        if self._tries > RELEARN and not _by_ddp(self._model):
            self._tries = 0
            return
        self._tries -= 1
        self.forget()
        self._last = None
        for parameter in self._model.parameters():
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
            self._switch = HookSwitch(self._handles[0], self._seen)
            self._switches.append(self._switch)

    def forget(self):
        if self._switch is not None:
            self._switches.remove(self._switch)
            self._switch = None
        while self._handles:
            self._handles.pop().remove()


def _on_host(values):
    """Whether the first tensor of them is in the host's memory: else a function returns before the others have come."""
    return next((value.device.type == "cpu" for value in values if isinstance(value, torch.Tensor)), False)


class Collectives:
    """Sums the time that training stands in collectives. A step with one that returns at once has no sum: where it is
    waited for is not seen."""

    def __init__(self, measured, nanoseconds, thread):
        self._measured = measured  # its `on` says whether this step is
        self._ns = nanoseconds
        self._thread = thread
        self._inside = False  # one calls another: counted once
        self.unseen = False

    def wrappers(self):
        """(name in torch.distributed, what makes a wrapper of it)"""
        return [(name, self._around) for name in COLLECTIVES if hasattr(torch.distributed, name)]

    def _around(self, inner):
        def collective(*args, **kwargs):
            if is_compiling() or not self._measured.on or self._inside or threading.get_ident() != self._thread:
                return inner(*args, **kwargs)
            self._inside = True
            began = _now()
            try:
                result = inner(*args, **kwargs)
            finally:
                self._inside = False
            if result is not None or not _on_host((*args, *kwargs.values())):
                self.unseen = True
            self._ns[COMM] = 0 if self.unseen else self._ns[COMM] + _now() - began
            return result

        collective.__doc__, collective.__wrapped__ = inner.__doc__, inner
        return collective
