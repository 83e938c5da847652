"""The launcher: one node's workers, attempt after attempt, under the node agent's word or alone.

Promises (docs/hook-protocol.md section 4): one thread, no polling; an attempt's workers run only after every worker of
an older one has been reaped; an attempt number that is not newer is ignored; without an agent it does what torchrun
does. Whatever state it is in, workers are running, or something is due within a bound (`_bound`). It imports no torch
itself: `run` does, before the loop starts.
"""

import contextlib
import dataclasses
import os
import signal
import time

from . import strays, wire
from .signals import ENDED, Signals
from .workers import Assignment, BecomeWorker, Workers

AGENT_GRACE = 30.0  # an agent that left less than this ago is being upgraded, and will be back
REAP_WITHIN = 10.0  # a worker that SIGKILL does not end in this time sits in a driver: it is left behind
FAILED = 1  # torchrun's exit code for whatever a worker's end was
MISPLACED = 2  # the command line does not say enough


class Launcher:
    """Runs one node's part of a job. `run` gives the exit code (docs/launcher.md has the table)."""

    def __init__(self, options, note=print, clock=time.monotonic):
        self._options = options
        self._note = note
        self._signals = Signals(options.signals)
        self.torch_version = ""
        self._clock = clock
        self.state = "waiting"
        self.attempt = -1  # of the workers started last
        self._floor = 0  # attempts below this one are over
        self._own = True  # this attempt was our own idea, not the agent's
        self._managed = False  # told to wait or stop: somebody has a plan for this job
        self._workers = None
        self._dying = set()
        self._told = set()  # those of them that end by an order or because the attempt is given up
        self._pending = None
        self._resting = None  # the state to be in once the last worker is gone
        self._restarts = options.max_restarts
        self._heal_wait = options.heal_wait
        self._failed_at = None  # when the running attempt failed
        self._deadline = None  # (when, what to do)
        self._inherited = set()  # children that the modules of --preload have
        self._swept = True  # what the last attempt's workers left behind is gone
        self._reap_by = 0.0
        self._agent_left = None
        self._result = None
        self._ending = None
        self._server = None
        self._commands = {"alone": self._alone, "wait": self._wait, "start": self._start, "stop": self._stop}

    def listen(self):
        """Open the socket. Before torch is imported, so that an agent can already connect."""
        listening = None
        if self._options.directory:
            try:
                listening = wire.listen(os.path.join(self._options.directory, "launcher.sock"))
            except OSError as error:
                self._note(
                    "no launcher.sock in %s (%s): running without a node agent" % (self._options.directory, error)
                )
        self._server = wire.Server(listening, self._hello, self._on_message)
        self._alone_at_once = listening is None

    def run(self):
        self._server.also(self._signals.watch(), self._woken)
        strays.adopt()
        self._inherited = strays.children()
        try:
            return self._loop()
        except BecomeWorker:
            raise
        except BaseException:
            self._signal_all(signal.SIGKILL)
            raise

    def _loop(self):
        if self._alone_at_once:
            self._begin_alone()
        else:
            self._after(self._options.agent_wait, self._begin_alone)
        had_agent = False
        while True:
            self._settle()
            if self._result is not None and not self._dying:
                return self._result
            self._bound()
            self._server.poll(self._timeout())
            has_agent = bool(self._server.connections)
            if had_agent and not has_agent:
                self._agent_gone()
            had_agent = has_agent

    def close_in_child(self):
        """In a forked worker: close every descriptor of the launcher."""
        self._server.close()

    # ---- what comes in

    def _woken(self):
        self._signals.drain()
        self._reap()

    def _end(self, number):
        if self._ending is not None:
            self._signal_all(signal.SIGKILL)
            return
        self._ending = number
        self._pending = self._resting = None
        if self._result is None:
            self._result = ENDED
        self._note("signal %d: ending the workers and this launcher" % number)
        self._signal_all(number)
        self._dying |= set(self._workers.pids) if self._workers else set()
        self._reap_by = self._clock() + self._options.term_grace + REAP_WITHIN
        self._after(self._options.term_grace, lambda: self._signal_all(signal.SIGKILL))

    def _on_message(self, connection, message):
        command = self._commands.get(message["t"])
        if command is None or self._result is not None:
            return
        before = self._said()
        command(message)
        self._settle()
        if self._said() == before and not self._dying:
            connection.send(before)  # nothing changed and nothing will: the agent hears how things stand all the same

    def _alone(self, message):
        wait = message.get("heal_wait_s")
        self._heal_wait = wait if isinstance(wait, (int, float)) and wait >= 0 else self._options.heal_wait
        self._managed = False
        if self.state in ("waiting", "stopped") or self._resting is not None:
            self._resting = None
            self._begin_alone()
        elif self._failed_at is not None and self._deadline is not None:
            self._after(self._failed_at + self._heal_wait - self._clock(), self._give_up)

    def _wait(self, message):
        self._managed = True
        if self._pending is None and (self._workers or self._dying):
            self._kill()
        self._pending = None
        self._deadline = None
        self._resting = "waiting"

    def _start(self, message):
        fields = {f.name: message.get(f.name) for f in dataclasses.fields(Assignment) if f.name != "by"}
        if not _sound(fields):
            self._note("ignored a start that makes no sense: %r" % (message,))
            return
        newest = self._pending.attempt if self._pending else self.attempt
        if fields["attempt"] <= newest or fields["attempt"] < self._floor:
            return
        self._managed = True
        self._own = False
        self._deadline = None
        self._kill()
        self._pending = Assignment(**fields, by="agent")

    def _stop(self, message):
        attempt = message.get("attempt")
        newest = self._pending.attempt if self._pending else self.attempt
        if type(attempt) is not int or newest >= attempt:
            return
        self._managed = True
        self._floor = max(self._floor, attempt)
        self._pending = None
        self._deadline = None
        self._kill()
        self._resting = "stopped"

    def _agent_gone(self):
        self._agent_left = self._clock()
        if self._deadline is not None and self._deadline[1] == self._forsaken:
            self._deadline = None  # `_bound` sets the one for a launcher without an agent

    # ---- what is done

    def _begin_alone(self):
        """Nobody manages this job: start as torchrun would."""
        o = self._options
        self._deadline = None
        if self._pending is not None or self._running():
            return
        if o.node_rank is None:
            self._note(
                "this node's rank is unknown: pass --node-rank, or set PET_NODE_RANK, JOB_COMPLETION_INDEX or "
                "SLURM_NODEID, or run the node agent, which assigns it"
            )
            self._result = MISPLACED
            return
        self._own = True
        self._pending = Assignment(
            attempt=max(self.attempt + 1, self._floor),
            node_rank=o.node_rank,
            nnodes=o.nnodes,
            nproc=o.nproc,
            world_size=o.nnodes * o.nproc,
            master_addr=o.master_addr,
            master_port=o.master_port,
        )

    def _settle(self):
        """Do what is due: a deadline's act, and the pending attempt once the old one's processes are gone."""
        if self._deadline is not None and self._clock() >= self._deadline[0]:
            act, self._deadline = self._deadline[1], None
            act()
        for number in self._signals.take():
            self._end(number)
        if self._dying and self._clock() >= self._reap_by:
            self._leave_behind()
        if self._dying or self._sweep():
            return
        if self._resting is not None:
            state, self._resting = self._resting, None
            if self._pending is None:
                self._become(state)
        if self._pending is not None and self._result is None:
            assignment, self._pending = self._pending, None
            self._start_attempt(assignment)

    def _start_attempt(self, assignment):
        self.attempt = assignment.attempt
        self._failed_at = None
        self._swept = False
        self._workers = Workers(assignment, self._options, self._note)
        problem = None
        with self._signals.blocked():
            try:
                self._workers.start()
            except OSError as error:
                problem = error
        self._become("running")
        if problem is not None:
            self._note("attempt %d: a worker could not be started: %s" % (assignment.attempt, problem))
            self._failed()

    def _leave_behind(self):
        self._note("processes %s did not end by SIGKILL (stuck in a driver?); left behind" % sorted(self._dying))
        for pid in self._dying:
            self._workers.pids.pop(pid, None)
        self._dying.clear()
        self._swept = True

    def _sweep(self):
        """The attempt's workers are gone: end what they started and left behind. True while some of it is ending."""
        if self._swept or self._workers.pids:
            return False
        left = strays.strays(self._inherited)
        if not left:
            self._swept = True
            return False
        if self._reap_by < self._clock():
            self._reap_by = self._clock() + REAP_WITHIN
        self._dying |= left
        for pid in left:  # a child of ours that was not reaped yet: the pid cannot be another process's
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return True

    def _bound(self):
        """No state lasts forever without workers: where nothing is due, wait for an agent's word within a bound."""
        if self._deadline or self._pending or self._dying or self._result is not None or self._running():
            return
        if self._server.connections:
            if self._options.plan_wait:
                self._after(self._options.plan_wait, self._forsaken)
        else:
            self._after(self._heal_wait if self._managed else self._options.agent_wait, self._begin_alone)

    def _forsaken(self):
        self._note(
            "the node agent is connected but has started nothing for %g s (PITCREW_PLAN_WAIT): giving up"
            % self._options.plan_wait
        )
        self._result = FAILED

    def _running(self):
        return self._workers is not None and bool(set(self._workers.pids) - self._dying)

    def _reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._workers.ended(pid, status) if self._workers else None
            wanted = pid in self._dying
            told = pid in self._told
            self._dying.discard(pid)
            self._told.discard(pid)
            if ended is not None:
                self._worker_ended(pid, *ended, wanted=wanted, told=told)

    def _worker_ended(self, pid, local_rank, code, number, wanted, told):
        self._server.broadcast(
            {
                "t": "exit",
                "attempt": self._workers.assignment.attempt,
                "local_rank": local_rank,
                "pid": pid,
                "code": code,
                "signal": number,
                "told": told and number == signal.SIGKILL,  # else it had ended by itself just before
            }
        )
        if wanted or self._result is not None:
            return
        if (code, number) != (0, 0):
            how = "by signal %d" % number if number else "with code %d" % code
            attempt = self._workers.assignment.attempt
            self._note("attempt %d: local rank %d (pid %d) ended %s" % (attempt, local_rank, pid, how))
            self._failed()
        elif not self._workers.pids and all(end == (0, 0) for end in self._workers.codes.values()):
            self._result = 0
            self._become("done")

    def _failed(self):
        if self._failed_at is not None:
            return
        self._failed_at = self._clock()
        recently = self._agent_left is not None and self._clock() - self._agent_left < AGENT_GRACE
        healing = self._heal_wait if self._server.connections or recently else 0.0
        self._become("failed")
        if healing:
            self._note("waiting up to %g s for the node agent to start the next attempt" % healing)
            self._after(healing, self._give_up)
        else:
            self._give_up()

    def _give_up(self):
        """No healing came: what torchrun does."""
        self._kill()
        if self._own and self._restarts > 0:
            self._restarts -= 1
            self._begin_alone()
        else:
            self._result = FAILED

    def _kill(self):
        """End the running attempt. The workers may be stopped or hung, so there is nothing to ask them."""
        if self._workers is None or not self._workers.pids:
            return
        self._dying |= set(self._workers.pids)
        self._told |= set(self._workers.pids)
        self._reap_by = self._clock() + REAP_WITHIN
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number):
        if self._workers is not None:
            self._workers.signal(number)

    # ---- what is said

    def _hello(self):
        o = self._options
        place = self._workers.assignment.node_rank if self._workers else o.node_rank
        return {
            "t": "hello",
            "v": 1,
            "role": "launcher",
            "pid": os.getpid(),
            "state": self.state,
            "attempt": self.attempt,
            "nproc": o.nproc,
            "nnodes": o.nnodes,
            "node_rank": -1 if place is None else place,
            "job_uid": o.job_uid,
            "torch": self.torch_version,
        }

    def _said(self):
        pids = sorted(self._workers.pids, key=self._workers.pids.get) if self._workers else []
        return {"t": "state", "state": self.state, "attempt": self.attempt, "pids": pids}

    def _become(self, state):
        before = self._said()
        self.state = state
        if self._said() != before or state == "running":
            self._server.broadcast(self._said())

    def _after(self, seconds, act):
        self._deadline = (self._clock() + seconds, act)

    def _timeout(self):
        if self._pending is not None and not self._dying:
            return 0.0  # the attempt before it could not be started
        times = [self._deadline[0]] if self._deadline else []
        if self._dying:
            times.append(self._reap_by)
        return max(0.0, min(times) - self._clock()) if times else None


def _sound(fields):
    numbers = [v for k, v in fields.items() if k != "master_addr"]
    if not all(type(n) is int and n >= 0 for n in numbers) or not isinstance(fields["master_addr"], str):
        return False
    return fields["nproc"] > 0 and (fields["node_rank"] + 1) * fields["nproc"] <= fields["world_size"]
