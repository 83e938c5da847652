"""A worker for the launcher's table: it dies by DEATH, WHEN told, in the attempts before FAILS. Cheap: no imports.

The victim is the last local rank. `startup` and `midway`: the others wait for it, as in a collective, and of a victim
that hangs rank 0 hears by its time-out. `end`: the others have ended by then, and the victim dies at exit.
"""

import os
import signal
import sys
import time

death, when, fails, files = sys.argv[1:5]
rank, last = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]) - 1
attempt = int(os.environ["PITCREW_ATTEMPT"])


def note(what):
    open(os.path.join(files, "%s-%d-%d" % (what, attempt, rank)), "w").close()


def die():
    note("dies")
    if death == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL if death == "kill" else signal.SIGSTOP)


def leave_processes():
    """A data loader in the worker's group, and a daemon that left it."""
    for daemon in (False, True):
        if os.fork() == 0:
            if daemon:
                os.setsid()
                if os.fork():
                    os._exit(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
            os._exit(0)


if attempt >= int(fails):
    note("finished")
elif rank != last:
    if when != "end":
        if death == "hang" and rank == 0:
            time.sleep(0.3)
            sys.exit(1)
        time.sleep(600)
elif when == "startup":
    die()
else:
    leave_processes()
    time.sleep(0.05)
    if when == "end":
        import atexit

        atexit.register(die)
    else:
        die()
