"""The rank's half of a checkpoint round: arm, hold, go, saved, release (docs/hook-protocol.md section 3).

Promises: a rank holds exactly at the agreed step or says before it gets there that it cannot; it saves only after `go`;
a holder whose deadline passes leaves the attempt and never goes on alone; every message is idempotent by `req`.

Two threads meet here. The side thread calls `handle`; the training thread compares its step with `stop_at` after each
step and calls `hold` when it is reached. No lock is taken on the step path: the side thread stores `stop_at` and then
reads the step, the training thread stores its step and then reads `stop_at`, each with a fence between the two
(`ring.fence`), so at least one of them sees the other.

No torch here.
"""

import collections
import threading
import time

from .ring import fence

NEVER = 1 << 62
REMEMBERED = 64  # answers of past rounds
LONGEST = 86_400_000  # ms: a deadline beyond a day is a mistake


class _Round:
    def __init__(self, req, at_step, patience, exclude, expires):
        self.req = req
        self.at_step = at_step
        self.patience = patience  # seconds
        self.exclude = exclude
        self.expires = expires
        self.held = False
        self.go = False
        self.over = False
        self.saved = None  # the message, once said


class _Memory(collections.OrderedDict):
    """What was answered to each req, newest kept."""

    def of(self, req):
        if req not in self:
            while len(self) >= REMEMBERED:
                self.popitem(last=False)
            self[req] = {}
        return self[req]


class Rounds:
    """step(): last completed step. can_save(): whether a save is possible. refuse(): True once training is over.
    notify(message): say to every agent, from any thread. leave(text): end this process, must not return."""

    __slots__ = (
        "_can_save", "_changed", "_clock", "_leave", "_memory", "_notify", "_refuse", "_round", "_step", "_verbs",
        "attempt", "stop_at",
    )  # fmt: skip

    def __init__(self, attempt, step, can_save, refuse, notify, leave, clock=time.monotonic):
        self.attempt = attempt
        self.stop_at = NEVER
        self._step = step
        self._can_save = can_save
        self._refuse = refuse
        self._notify = notify
        self._leave = leave
        self._clock = clock
        self._changed = threading.Condition()
        self._round = None
        self._memory = _Memory()
        self._verbs = {"arm": self._arm, "go": self._go, "cancel": self._cancel, "release": self._release}

    def handles(self, verb):
        return verb in self._verbs

    def handle(self, message):
        """Answers (a list) to one of the round's messages."""
        req = message.get("req")
        if message.get("attempt") != self.attempt:
            return [self._nack(req, "attempt")]
        if not isinstance(req, str) or not req:
            return [self._nack(req, "unknown")]
        with self._changed:
            return self._verbs[message["t"]](req, message)

    def _say(self, kind, req, **more):
        return dict({"t": kind, "req": req, "attempt": self.attempt, "step": self._step()}, **more)

    def _nack(self, req, reason):
        return self._say("nack", req, reason=reason)

    def _arm(self, req, message):
        past = self._memory.of(req)
        if "arm" in past:
            mine = self._round is not None and self._round.req == req
            return [past["arm"], *([self._say("held", req)] if mine and self._round.held else [])]
        past["arm"] = self._first_arm(req, message)
        return [past["arm"]]

    def _first_arm(self, req, message):
        at_step, deadline_ms, exclude = message.get("at_step"), message.get("deadline_ms"), message.get("exclude") or []
        if type(at_step) is not int or type(deadline_ms) not in (int, float) or not 0 < deadline_ms <= LONGEST:
            return self._nack(req, "unknown")
        if "cancel" in self._memory[req]:
            return self._nack(req, "cancelled")
        if self._refuse():
            return self._nack(req, "out")
        if not self._can_save():
            return self._nack(req, "cannot-save")
        if self._round is not None:
            return self._nack(req, "busy")
        patience = deadline_ms / 1000.0
        exclude = frozenset(r for r in exclude if type(r) is int) if isinstance(exclude, list) else frozenset()
        self._round = _Round(req, at_step, patience, exclude, self._clock() + patience)
        self.stop_at = at_step  # stored before the step is read: see the module's text
        fence()
        if self._step() >= at_step:
            self._forget()
            return self._nack(req, "past")
        return self._say("armed", req, at_step=at_step)

    def _go(self, req, message):
        past = self._memory.of(req)
        if "saved" in past:
            self._renew(req)
            return [past["saved"]]
        if self._round is None or self._round.req != req:
            return [self._nack(req, "unknown")]
        self._renew(req)
        self._round.go = True
        self._changed.notify_all()
        return []  # `saved` is the answer

    def _cancel(self, req, message):
        return self._end(req, "cancel", "cancelled")

    def _release(self, req, message):
        if "arm" not in self._memory.of(req):
            return [self._nack(req, "unknown")]
        return self._end(req, "release", "released")

    def _end(self, req, verb, answer):
        past = self._memory.of(req)
        if verb not in past:
            past[verb] = self._say(answer, req)
            if self._round is not None and self._round.req == req:
                if self._round.held:
                    self._round.over = True
                    self._changed.notify_all()
                else:
                    self._forget()
        return [past[verb]]

    def _renew(self, req):
        if self._round is not None and self._round.req == req:
            self._round.expires = self._clock() + self._round.patience
            self._changed.notify_all()

    def _forget(self):
        self._round = None
        self.stop_at = NEVER

    def hold(self, step, save, moved=lambda held: None):
        """Training thread, at the end of step: hold if a round wants it. save(step, exclude) gives the fields of
        `saved` and never raises; moved(True|False) is told when holding begins or saving interrupts it. Returns the
        seconds spent here."""
        began = self._clock()
        with self._changed:
            current = self._round
            if current is None or step < current.at_step:
                return 0.0
            current.held = True
            try:
                moved(True)
                self._notify(self._say("held", current.req))
                why = self._until_over(current, step, save, moved)
            except Exception as error:  # it has said `held`: it must not train on alone
                why = "held at step %d and cannot go on holding: %s" % (step, error)
            if why is not None:
                self._leave(why)
            self._forget()
        return self._clock() - began

    def _until_over(self, current, step, save, moved):
        """Why this rank has to leave, or None."""
        while not current.over:
            if current.go and current.saved is None:
                self._save(current, step, save, moved)
                continue
            left = current.expires - self._clock()
            if left <= 0:
                return "held at step %d and heard nothing for %.1f s" % (step, current.patience)
            self._changed.wait(left)
        return None

    def _save(self, current, step, save, moved):
        self._changed.release()  # a save takes long: pings, cancels and repeated messages go on being answered
        try:
            moved(False)
            fields = save(step, current.exclude)
            moved(True)
        finally:
            self._changed.acquire()
        current.saved = dict(self._say("saved", current.req), **fields)
        self._memory.of(current.req)["saved"] = current.saved
        current.expires = self._clock() + current.patience
        self._notify(current.saved)
