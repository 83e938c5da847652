"""fault.c in a process: built, preloaded, and told which thread is which.

Threads have numbers: rank r is r, its second thread 16 + r, the heartbeat 40."""

import ctypes
import os
import subprocess
import sys
import tempfile

from pitcrew_torch import custody, saver

HERE = os.path.dirname(os.path.abspath(__file__))


def shim():
    lib = ctypes.CDLL(os.environ["LD_PRELOAD"])
    lib.fault_name.restype = ctypes.c_char_p
    return lib


def number_threads(lib):
    """Give the threads that the package starts their numbers."""
    finish, beat = saver.Saver._finish_all, custody.Heartbeat.run

    def finish_all(self):
        lib.fault_rank(16 + self._rank if self.faulty else -1)
        finish(self)

    def run(self):
        lib.fault_rank(40 if self._owner.faulty else -1)
        beat(self)

    saver.Saver._finish_all, custody.Heartbeat.run = finish_all, run
    saver.Saver.faulty = custody.Owner.faulty = False


def preloaded(argv):
    """Build the shim and start again with it."""
    with tempfile.TemporaryDirectory() as directory:
        library = os.path.join(directory, "fault.so")
        subprocess.run(
            [
                os.environ.get("CC", "cc"),
                "-O1",
                "-shared",
                "-fPIC",
                "-o",
                library,
                os.path.join(HERE, "fault.c"),
                "-ldl",
            ],
            check=True,
        )
        env = dict(os.environ, LD_PRELOAD=library, PYTHONDONTWRITEBYTECODE="1")
        return subprocess.run(
            [sys.executable, os.path.join(HERE, "driver.py"), *(sys.argv[1:] if argv is None else argv)], env=env
        ).returncode
