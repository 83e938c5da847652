"""One of two ranks that share the GPU dies, stops or gets stuck, under the real launcher and the real agent.

The ranks exchange gradients through gloo on the device's tensors, since NCCL refuses two ranks on one GPU, and each has
an NCCL group of world size 1 beside it. No remediator is here: after PITCREW_HEAL_WAIT the launcher restarts the ranks
itself, so the time to the next attempt includes it.
"""

import collections
import contextlib
import os
import signal
import time

from . import agent, jobs, nvml
from .figures import wait_until

HEAL_WAIT = 0.5  # seconds


class Gang:
    """Two ranks under the launcher in a pod that the agent watches."""

    def __init__(self, context, node):
        self._node, self._patience = node, context.patience
        self.log = os.path.join(context.work, "job-log")
        env = jobs.environment(
            context, JOB_LOG=self.log, JOB_WIDTH=context.size(512, 32), JOB_LAYERS=4, JOB_STEP_SECONDS=0.02,
            JOB_NCCL=int(context.device == "cuda"), PITCREW_DIR=node.pod, PITCREW_HEAL_WAIT=HEAL_WAIT,
        )  # fmt: skip
        self.launcher = jobs.launched(env, 2, restarts=9)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.launcher.terminate()
        with contextlib.suppress(Exception):
            self.launcher.wait(6.0)
        for rank in (0, 1):  # whatever is stopped or stuck still
            for line in jobs.lines(self.log, rank, "start"):
                if same_process(line["pid"], line["mono"]):
                    os.kill(line["pid"], signal.SIGKILL)
        if self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()

    def newest(self):
        """The newest attempt that both ranks step in, or -1."""
        last = [jobs.lines(self.log, rank, "step")[-1:] for rank in (0, 1)]
        return min((line[0]["attempt"] for line in last), default=-1) if all(last) else -1

    def steady(self, after=-1, steps=30):
        """The attempt after that one, once both ranks made so many steps in it and the agent knows their pace."""

        def ready():
            if self.launcher.poll() is not None:
                raise RuntimeError("the launcher ended with %d" % self.launcher.returncode)
            n = self.newest()
            return n > after and all(len(jobs.lines(self.log, r, "step", attempt=n)) >= steps for r in (0, 1))

        wait_until(ready, self._patience, "both ranks to step after attempt %d" % after, every=0.02)
        return self.newest()

    def pid(self, rank, attempt):
        return jobs.lines(self.log, rank, "start", attempt=attempt)[-1]["pid"]

    def finding(self, signal_name, rank, since):
        """When the agent's finding about the rank, later than `since`, was on disk."""
        found = [(at, data["target"].get("rank")) for name, at, data in self._node.findings() if name == signal_name]
        times = [at for at, about in found if about == rank and at >= since]
        return times[0] if times else 0.0

    def first_step(self, after):
        """When both ranks had made a step in a later attempt."""
        firsts = []
        for rank in (0, 1):
            firsts += [line["at"] for line in jobs.lines(self.log, rank, "step") if line["attempt"] > after][:1]
        return max(firsts) if len(firsts) == 2 else 0.0


def same_process(pid, mono):
    """Whether the process that wrote a line at that monotonic time is alive, and not a later one of its number."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return False
    began = int(fields[19]) / os.sysconf("SC_CLK_TCK") - (time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic())
    return fields[0] not in "ZX" and began <= mono


class Fault:
    """One rank of the gang is hurt, and what follows is waited for. Times are in seconds since."""

    def __init__(self, context, gang, attempt, number):
        self._patience, self._gang, self._attempt = context.patience, gang, attempt
        self.victim = gang.pid(1, attempt)
        self.hurt(number)

    def hurt(self, number):
        self._at, self._began = time.time(), time.monotonic()
        os.kill(self.victim, number)

    def found(self, finding):
        """Until the agent's finding about the rank is on disk."""
        at = self._wait(lambda: self._gang.finding(finding, 1, self._at), finding)
        return at - self._at

    def gone(self):
        self._wait(lambda: not os.path.exists("/proc/%d" % self.victim), "the killed rank to be gone", 0.001)
        return time.monotonic() - self._began

    def released(self):
        """Until NVML no longer lists the process."""
        self._wait(lambda: self.victim not in (contexts() or ()), "the driver to drop its context")
        return time.monotonic() - self._began

    def stepped(self):
        """Until both ranks made a step in a later attempt."""
        return self._wait(lambda: self._gang.first_step(self._attempt), "the next attempt's first step") - self._at

    def _wait(self, true, what, every=0.005):
        return wait_until(true, self._patience, what, every)


def contexts():
    """The pids that NVML lists on the GPUs, or None if it cannot be asked."""
    try:
        found = nvml.read(nvml.load())
    except Exception:
        return None
    return {pid for gpu in found.values() for pid in gpu["processes"] or ()}


AGAIN = "until both ranks step in the next attempt, %g s of waiting for a plan included" % HEAL_WAIT


def kill(context, report):
    taken = collections.defaultdict(list)
    with agent.Agent(context) as node, Gang(context, node) as gang:
        attempt = gang.steady()
        for _ in range(context.size(3, 1)):
            listed = context.device == "cuda" and gang.pid(1, attempt) in (contexts() or ())
            fault = Fault(context, gang, attempt, signal.SIGKILL)
            taken["SIGKILL until the process is gone"].append(fault.gone())
            if listed:
                taken["SIGKILL until NVML no longer lists its context"].append(fault.released())
            taken["SIGKILL until the agent's rank/dead is on disk"].append(fault.found("rank/dead"))
            taken["SIGKILL " + AGAIN].append(fault.stepped())
            attempt = gang.steady(attempt)
    for name, seconds in taken.items():
        report.figure(name, "s", seconds)


# How a rank hangs: the signal that makes it, and the finding that the agent must make of it.
HANGS = (
    ("stopped (SIGSTOP)", signal.SIGSTOP, "rank/hung"),
    ("stuck on the device", signal.SIGUSR1, "rank/stalled"),
)


def hang(context, report):
    taken = collections.defaultdict(list)
    with agent.Agent(context) as node, Gang(context, node) as gang:
        attempt = -1
        for what, number, finding in HANGS * context.size(2, 1):
            attempt = gang.steady(attempt)
            fault = Fault(context, gang, attempt, number)
            taken["rank %s, until the agent's %s is on disk" % (what, finding)].append(fault.found(finding))
            fault.hurt(signal.SIGKILL)
            taken["rank %s, then SIGKILL until the process is gone" % what].append(fault.gone())
            taken["rank %s, then SIGKILL %s" % (what, AGAIN)].append(fault.stepped())
    for name, seconds in taken.items():
        report.figure(name, "s", seconds)
