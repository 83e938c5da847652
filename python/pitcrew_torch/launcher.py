"""The launcher: one node's workers, attempt after attempt, under the node agent's word or alone.

Promises (docs/hook-protocol.md section 4): one thread, no polling; an attempt's workers run only after every worker of
an older one has been reaped; an attempt number that is not newer is ignored; without an agent it does what torchrun
does. It imports no torch itself: `run` does, before the loop starts.
"""

import contextlib
import dataclasses
import os
import signal
import socket
import time

from . import wire
from .workers import Assignment, Workers

AGENT_GRACE = 30.0  # an agent that left less than this ago is being upgraded, and will be back
REAP_WITHIN = 10.0  # a worker that SIGKILL does not end in this time sits in a driver: it is left behind
SIGNALLED = 128


class Launcher:
    """spawn(assignment) starts an attempt's workers (class Workers). `run` gives the exit code."""

    def __init__(self, options, spawn=None, note=print, clock=time.monotonic):
        self._options = options
        self._spawn = spawn or (lambda assignment: Workers(assignment, options, note))
        self._note = note
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
        self._failure = 0
        self._deadline = None  # (when, what to do)
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
        self._catch_signals()
        if self._alone_at_once:
            self._begin_alone()
        else:
            self._after(self._options.agent_wait, self._begin_alone)
        had_agent = False
        while True:
            self._settle()
            if self._result is not None and not self._dying:
                self._server.close()
                return self._result
            self._server.poll(self._timeout())
            has_agent = bool(self._server.connections)
            if had_agent and not has_agent:
                self._agent_gone()
            had_agent = has_agent

    def close_in_child(self):
        """In a forked worker: give back every descriptor and signal of the launcher."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._server.close()
        for end in self._wake:
            end.close()

    # ---- what comes in

    def _catch_signals(self):
        self._wake = socket.socketpair()
        for end in self._wake:
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        self._server.also(self._wake[0].fileno(), self._woken)

    def _woken(self):
        with contextlib.suppress(BlockingIOError):
            while self._wake[0].recv(4096):
                pass
        self._reap()

    def _end(self, number, frame):
        if self._ending is None:
            self._ending = number
            self._pending = None
            self._result = SIGNALLED + number
            self._signal_all(number)
            self._dying |= set(self._workers.pids) if self._workers else set()
            self._reap_by = self._clock() + self._options.term_grace + REAP_WITHIN
            self._after(self._options.term_grace, lambda: self._signal_all(signal.SIGKILL))
        else:
            self._signal_all(signal.SIGKILL)

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
        if self.state in ("waiting", "stopped"):
            self._begin_alone()

    def _wait(self, message):
        self._managed = True
        if self._pending is None and (self._workers or self._dying):
            self._kill()
        self._pending = None
        self._deadline = None
        self._resting = "waiting"

    def _start(self, message):
        fields = {f.name: message.get(f.name) for f in dataclasses.fields(Assignment)}
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
        self._pending = Assignment(**fields)

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
        if self._deadline is None and self.state in ("waiting", "stopped") and not self._pending:
            self._after(self._heal_wait if self._managed else self._options.agent_wait, self._begin_alone)

    # ---- what is done

    def _begin_alone(self):
        """Nobody manages this job: start as torchrun would."""
        o = self._options
        self._deadline = None
        if self._pending is not None or (self._workers and self._workers.pids):
            return
        if o.node_rank is None:
            self._note(
                "this node's rank is not known: pass --node-rank, or set PET_NODE_RANK or JOB_COMPLETION_INDEX, "
                "or let the node agent say it"
            )
            self._result = 2
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
        if self._dying and self._clock() >= self._reap_by:
            self._note("processes %s do not end by SIGKILL (stuck in a driver?); left behind" % sorted(self._dying))
            self._dying.clear()
        if self._dying:
            return
        if self._resting is not None:
            state, self._resting = self._resting, None
            if self._pending is None:
                self._become(state)
        if self._pending is not None and self._ending is None:
            assignment, self._pending = self._pending, None
            self.attempt = assignment.attempt
            self._failure = 0
            self._workers = self._spawn(assignment)
            self._become("running")

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
            self._failed(SIGNALLED + number if number else code)
        elif not self._workers.pids and all(end == (0, 0) for end in self._workers.codes.values()):
            self._result = 0
            self._become("done")

    def _failed(self, code):
        if self._failure:
            return
        self._failure = code
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
            self._result = self._failure

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
        times = [self._deadline[0]] if self._deadline else []
        if self._dying:
            times.append(self._reap_by)
        return max(0.0, min(times) - self._clock()) if times else None


def _sound(fields):
    numbers = [v for k, v in fields.items() if k != "master_addr"]
    if not all(type(n) is int and n >= 0 for n in numbers) or not isinstance(fields["master_addr"], str):
        return False
    return fields["nproc"] > 0 and (fields["node_rank"] + 1) * fields["nproc"] <= fields["world_size"]
