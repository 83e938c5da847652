"""Which steps are measured: often where steps are long, seldom where they are short.

Promises: the choice follows from a step's number, so ranks measure the same ones; each choice contains the sparser ones
(a multiple of 64 is one of 16), so ranks that differ for a moment in their pace still have measured steps in common.

No torch here.
"""

CHOICES = (256, 64, 16, 4, 1)  # one step of so many
ABOUT = 1_280_000_000  # ns: no longer from one measured step to the next, where steps are long enough for a choice


class Pace:
    """One step of how many is measured. fixed: the user's word; None: by the length of the steps so far."""

    def __init__(self, fixed=None):
        self._fixed = fixed
        self.every = fixed or 1
        self._began = None  # (sequence, ns) of the record from which on the pace is taken

    def measured(self, sequence, now):
        """A measured step has ended, with this record, at this time in ns."""
        if self._fixed is not None:
            return
        if self._began is not None and sequence > self._began[0]:
            took = (now - self._began[1]) / (sequence - self._began[0])
            self.every = next((n for n in CHOICES if n * took <= ABOUT), 1)
        self._began = (sequence, now)

    def next(self, step):
        """The first step from this one on that is to be measured."""
        return -(-step // self.every) * self.every
