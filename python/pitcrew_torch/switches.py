"""Probes that come and go: in a step that is not measured none of them is in the way of training.

No torch here.
"""


class HookSwitch:
    """Turns a hook that torch registered off and on again, for less than registering it anew costs.

    idle: what stands in its place while it is off, None for nothing. Where it may be turned while torch goes through
    its kind there must be something: taking it out would be an error there, and end training."""

    def __init__(self, handle, hook):
        self._hooks, self._id, self._hook, self.idle = handle.hooks_dict_ref(), handle.id, hook, None

    def turn(self, on):
        if on:
            self._hooks[self._id] = self._hook
        elif self.idle is None:
            self._hooks.pop(self._id, None)
        elif self._id in self._hooks:
            self._hooks[self._id] = self.idle


class Wrapper:
    """Puts a wrapper around owner.name and takes it off again. make(inner) gives the wrapper.

    Somebody else may wrap ours while it is on: then it stays where it is, for good, and its own check of whether to
    measure decides. What somebody else has put there while ours was off is wrapped in its turn."""

    def __init__(self, owner, name, make):
        self._owner, self._name, self._make = owner, name, make
        self._inner = getattr(owner, name)
        self._ours = make(self._inner)
        self._on = False

    def turn(self, on):
        if on == self._on:
            return
        there = getattr(self._owner, self._name, None)
        if on:
            if there != self._inner:
                self._inner, self._ours = there, self._make(there)
            setattr(self._owner, self._name, self._ours)
            self._on = True
        elif there == self._ours:
            setattr(self._owner, self._name, self._inner)
            self._on = False
