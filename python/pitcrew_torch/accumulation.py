"""A half-accumulated step is not a step: calls of `step` between which gradients only gather are not counted.

Promises: a call is left out only after both were seen: a call before which gradients changed and no parameter did, and
two before which a parameter did. So an optimizer whose work cannot be seen (a replayed CUDA graph, a copy through
`.data`) costs no step, also where parameters are loaded or broadcast once. Scripts that call `step` once an optimizer
step stop paying for this after LEARN calls.
"""

import torch

from .switches import Wrapper

LEARN = 64  # calls, after which a script without accumulation is left alone


class Accumulation:
    """parameters: those that the optimizers change. counted(calls): takes back calls that were counted before it was
    known. Wraps `step` until `over`."""

    def __init__(self, parameters, retract, warn):
        self._parameters = [p for p in parameters if isinstance(p, torch.Tensor) and p.requires_grad]
        self._retract, self._warn = retract, warn
        self._before = self._look()
        self._skipped = False  # a GradScaler has left a step out: its gradients are gone, so it was one
        self._gathered = 0  # calls counted so far before which gradients only gathered
        self._stepped = 0  # calls before which a parameter changed
        self._proved = False
        self._calls = 0
        self._scalers = [Wrapper(kind, "step", self._scaling) for kind in _scalers()]
        for scaler in self._scalers:
            scaler.turn(True)

    @property
    def over(self):
        """Whether nothing is left to learn: every call so far came after a step."""
        return not self._proved and (self._calls >= LEARN or not self._parameters)

    def half(self):
        """Whether the call that comes now ends no step."""
        self._calls += 1
        parameters, gradients = self._look()
        stepped = parameters != self._before[0] or self._skipped
        gathered = not stepped and gradients != self._before[1]
        self._before, self._skipped = (parameters, gradients), False
        self._stepped += stepped
        if self._proved:
            return gathered
        self._gathered += gathered
        if self._gathered and self._stepped > 1:
            self._proved = True
            self._warn(
                "step() is called while gradients gather: such calls end no step and are not counted. Call it after "
                "optimizer.step() only, to save the time of finding out"
            )
            self._retract(self._gathered - gathered)
            return gathered
        return False

    def detach(self):
        for scaler in self._scalers:
            scaler.turn(False)

    def _look(self):
        """What changes with a parameter's or gradient's content: tensors count their changes."""
        parameters = [p._version for p in self._parameters]
        return parameters, [None if p.grad is None else (id(p.grad), p.grad._version) for p in self._parameters]

    def _scaling(self, inner):
        def step(scaler, *args, **kwargs):
            self._skipped = True
            return inner(scaler, *args, **kwargs)

        return step


def _scalers():
    amp = getattr(torch, "amp", None)
    kind = getattr(amp, "GradScaler", None) or getattr(getattr(torch.cuda, "amp", None), "GradScaler", None)
    return [kind] if kind is not None else []
