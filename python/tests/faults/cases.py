"""The cases: which call of which thread gets which fault, in which scenario."""

import collections
import errno
import random

ERROR, CRASH, FULL, STALL = 1, 2, 3, 4
FOREVER = 1 << 30
TRIES = 3  # of a file call, see speed_up: an error that often outlasts the retry and nothing else
ERRNOS = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES, errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
PASSING = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES, errno.ENOENT)  # those that a retry has to survive


class Case(collections.namedtuple("Case", "scenario world thread call kind number times")):
    def __str__(self):
        how = {ERROR: "error", CRASH: "crash", FULL: "disk full", STALL: "stall"}[self.kind]
        if self.kind == ERROR:
            how = "%s %s" % (errno.errorcode[self.number], {1: "once", TRIES: "thrice"}.get(self.times, "from then on"))
        text = "%s, %d ranks, thread %d, call %d, %s" % (self.scenario, self.world, self.thread, self.call, how)
        return "%s (--one %s)" % (text, ",".join(map(str, self)))


SHARE = {1: 0.4, 2: 0.4, 8: 0.2}  # of the cases, by the number of ranks: those of 8 take the longest


def cases(counts, seed):
    """Every kind of fault at every counted call."""
    rng = random.Random(seed)
    found = collections.defaultdict(list)
    for (scenario, world), per_thread in counts.items():
        for thread, calls in per_thread:
            for call in range(1, calls + 1):
                found[world] += [
                    Case(scenario, world, thread, call, ERROR, rng.choice(PASSING), 1),
                    Case(scenario, world, thread, call, ERROR, rng.choice(ERRNOS), 1),
                    Case(scenario, world, thread, call, ERROR, rng.choice(ERRNOS), FOREVER),
                    Case(scenario, world, thread, call, ERROR, rng.choice(PASSING), TRIES),
                    Case(scenario, world, thread, call, CRASH, 0, 1),
                    Case(scenario, world, thread, call, FULL, 0, FOREVER),
                    Case(scenario, world, thread, call, STALL, 0, 1),
                ]
    return [case for each in found.values() for case in each]


def sample(every, amount, rng, even):
    """So many of the cases (0: all), by SHARE unless even."""
    if not amount or amount >= len(every):
        return every
    if even:
        return rng.sample(every, amount)
    chosen = []
    for world, share in SHARE.items():
        each = [case for case in every if case.world == world]
        chosen += rng.sample(each, min(len(each), int(amount * share)))
    return chosen


NEEDED_BY = {  # the cases among which a protection matters
    "retry": lambda case: case.kind == ERROR and case.times == 1 and case.number in PASSING and case.thread < 8,
    "fence": lambda case: case.kind == STALL and case.scenario == "attempt",
    "read-only": lambda case: case.scenario == "reader",
    "damage": lambda case: case.kind == ERROR and case.times == TRIES and case.thread < 8,
}
