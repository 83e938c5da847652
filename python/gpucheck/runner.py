"""Runs measurements, each in a session of its own and under a time limit.

Promises: a measurement that fails, crashes or hangs becomes a result with its reason; what it had written is kept; no
process of its session is left unless the kernel cannot end it, and then the result names it.
"""

import contextlib
import dataclasses
import faulthandler
import os
import signal
import subprocess
import sys
import time
import traceback

from . import figures

OK, FAILED, TIMED_OUT, MISSING, NOT_RUN = "ok", "failed", "timed out", "missing", "not run"
GRACE = 3.0  # seconds that SIGKILL has to end a session
STACKS = 2.0  # seconds before the limit at which a measurement that hangs writes where
RUNNING = set()  # the leaders of the sessions that run now
LEAST = 5.0  # a measurement does not start with fewer seconds left of the whole


@dataclasses.dataclass(frozen=True)
class Measurement:
    """name, what it measures, its limit in seconds, and "module:function" of this package, called (context, report)."""

    name: str
    what: str
    limit: float
    module: str


@dataclasses.dataclass(frozen=True)
class Context:
    """What a measurement is given.

    label: figures.Report's. device: "cuda" or "cpu". work: a folder of its own on the disk. memory: one in memory, if
    the host has it. patience: seconds that it waits for one event."""

    label: str
    device: str
    work: str
    memory: str
    root: str
    simulated: bool
    patience: float

    def size(self, on_gpu, dry):
        return dry if self.simulated else on_gpu


def run(measurement, argv, env, work, left):
    """One measurement's result, as a dict. argv: the command that runs it. left: seconds that the whole has left."""
    result = {"name": measurement.name, "what": measurement.what}
    limit = min(measurement.limit, left)
    if limit < LEAST:
        return dict(result, status=NOT_RUN, reason="no time left: earlier measurements took all of it", seconds=0.0)
    report, log = os.path.join(work, "report.jsonl"), os.path.join(work, "output.txt")
    began = time.monotonic()
    with open(log, "wb") as out:
        START.under_way = True
        try:
            child = subprocess.Popen(
                [*argv, "--report", report, "--limit", str(limit)], env=env, cwd=work, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
            RUNNING.add(child)
        finally:
            START.under_way = False
    if START.ended:
        end_all()
    try:
        code = child.wait(limit)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        left_behind = end_session(child)
        RUNNING.discard(child)
    found = figures.read(report)
    status, reason = judge(code, limit, found, tail(log))
    result.update(status=status, reason=reason, seconds=round(time.monotonic() - began, 3), limit_s=limit)
    for kind, lines in found.items():
        result[kind + "s"] = lines
    if left_behind:
        result["left_behind"] = left_behind
    if status not in (OK, MISSING):
        result["log"] = tail(log)
    return result


class START:
    """The start of a measurement's process, during which a signal must wait."""

    under_way = ended = False


def end_all(*_):
    """A signal handler: the whole check is to end. What was measured is in the file already."""
    if START.under_way:  # its process exists and is not in RUNNING yet: `run` ends it a moment later
        START.ended = True
        return
    for child in list(RUNNING):
        end_session(child)
    os._exit(130)


EXIT_MISSING = 3


def judge(code, limit, found, log):
    """(status, reason) of a measurement that ended with this code, None if it reached its limit."""
    last = log.splitlines()[-1] if log else "no output"
    if code is None:
        return TIMED_OUT, "did not end within %g s; what it measured before is kept" % limit
    if code < 0:
        return FAILED, "ended by %s; last output: %s" % (signal_name(-code), last)
    if code == EXIT_MISSING:
        return MISSING, last
    if code != 0:
        return FAILED, last
    wrong = [c for c in found["check"] if not c["ok"]]
    if wrong:
        return FAILED, "; ".join("%s: expected %s, got %s" % (c["name"], c["expected"], c["got"]) for c in wrong)
    if not any(found[kind] for kind in ("figure", "check", "fact")):
        return FAILED, "reported nothing"
    return OK, ""


def inside(call, context, report_path, limit):
    """Runs call(context, report) in the measurement's own process. Gives its exit code."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(0.1, limit - STACKS), exit=False)
    try:
        call(context, figures.Report(report_path, context.label))
    except figures.Missing as missing:
        print(missing, file=sys.stderr)
        return EXIT_MISSING
    except BaseException as error:
        traceback.print_exc()
        text = " ".join(str(error).split())
        print("%s: %s" % (type(error).__name__, text[:600]), file=sys.stderr)  # the last line is the reason
        return 1
    return 0


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def tail(path, size=4000):
    with contextlib.suppress(OSError), open(path, "rb") as f:
        f.seek(max(0, os.path.getsize(path) - size))
        return f.read().decode(errors="replace").strip()
    return ""


def session(leader):
    """The processes of a session that are not zombies. Launchers and agents give their children process groups of their
    own, but not sessions."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/%s/stat" % name) as f:
            fields = f.read().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(name))
    return found


def end_session(child):
    """SIGKILL to all of the child's session, again until it is empty. Gives the pids that did not end."""
    until = time.monotonic() + GRACE
    while True:
        pids = session(child.pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.poll()
        if not pids or time.monotonic() > until:
            return pids
        time.sleep(0.02)
