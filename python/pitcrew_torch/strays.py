"""Processes that a worker started and that left its process group: they are found and ended with the attempt.

The launcher adopts them (PR_SET_CHILD_SUBREAPER), as PID 1 does anyway. Only processes that come from a worker count:
one that somebody started in the container by hand (`kubectl exec`) and that PID 1 adopts is left alone.

No torch here.
"""

import contextlib
import ctypes
import os

PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt():
    """Orphans below this process become its children. Costs nothing where the kernel refuses."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children():
    """The pids of this process's children, zombies included."""
    found, complete = set(), True
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/children" % task) as f:
                found.update(map(int, f.read().split()))
        except OSError:
            complete = False  # a kernel without CONFIG_PROC_CHILDREN
    return found if complete else _children_by_parent()


def _children_by_parent():
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError, ValueError), open("/proc/%s/stat" % name) as f:
            if int(f.read().rsplit(")", 1)[1].split()[1]) == os.getpid():
                found.add(int(name))
    return found


def strays(known):
    """Children other than the known ones that come from a worker: forked from this program or executed by one."""
    ours = _read("/proc/self/cmdline")
    found = set()
    for pid in children() - known:
        command = _read("/proc/%d/cmdline" % pid)
        environment = _read("/proc/%d/environ" % pid).split(b"\0")
        if command and (command == ours or b"PITCREW_LAUNCHER=1" in environment):
            found.add(pid)
    return found


def _read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""
