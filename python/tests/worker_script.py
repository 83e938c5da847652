"""A worker for the launcher's tests: says who it is, then does what its arguments say."""

import json
import os
import random
import signal
import sys
import time

NAMES = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "PITCREW_ATTEMPT",
    "PITCREW_LAUNCHER",
]


def main():
    about = {name: os.environ.get(name) for name in NAMES}
    about.update(
        pid=os.getpid(), ppid=os.getppid(), pgid=os.getpgid(0), argv=sys.argv, main=sys.modules["__main__"].__file__,
        name=__name__, random=random.random(), path0=sys.path[0], fds=sorted(_sockets()),
    )  # fmt: skip
    name = "said-%s-%s.json" % (about["PITCREW_ATTEMPT"], about["RANK"])
    with open(name + ".tmp", "w") as f:
        json.dump(about, f)
    os.rename(name + ".tmp", name)
    for act in sys.argv[1:]:
        kind, _, value = act.partition("=")
        if kind == "sleep":
            time.sleep(float(value))
        elif kind == "exit" or (kind == "exit-first" and about["PITCREW_ATTEMPT"] == "0"):
            sys.exit(int(value))
        elif kind == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif kind == "child" and os.fork() == 0:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the kernel sends to an orphaned group that is stopped
            time.sleep(600)
            os._exit(0)


def _sockets():
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/%s" % fd)
        except OSError:
            continue
        if target.startswith(("socket:", "anon_inode:[eventpoll]")):
            yield target


main()
