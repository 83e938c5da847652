"""The launcher's signals, from its first instruction to its last.

Promises: before the loop runs, a signal ends the process at once, because nothing has been started yet. Later, a signal
is kept and wakes the loop; the handler does nothing else, so the launcher's state never changes in the middle of a
step. Signals are blocked while workers are being started, so each worker either gets the signal or is never started.
All of it holds for PID 1 too, for which the kernel drops a signal that has no handler.

No torch here, and no slow import: `run` installs the first handlers before it imports anything else.
"""

import collections
import contextlib
import os
import signal
import socket

ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")  # torchrun's
ENDED = 1  # torchrun's exit code after a signal


def catch_early(names=ENDING):
    """End the process on each of these signals until `Signals.watch` takes over."""
    numbers = [getattr(signal, name) for name in names]
    for number in numbers:
        if not _ignored_hangup(number):
            signal.signal(number, _end_now)
    # A parent may have blocked them; without SIGCHLD the launcher would never hear that a worker ended.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [*numbers, signal.SIGCHLD])


def _ignored_hangup(number):
    """True for SIGHUP under nohup."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _end_now(number, frame):
    with contextlib.suppress(OSError):
        os.write(2, b"pitcrew_torch.run: ended by signal %d before any worker was started\n" % number)
    os._exit(ENDED)


class Signals:
    """What came in, in order. `take` gives it once."""

    def __init__(self, names=ENDING):
        self._numbers = [getattr(signal, name) for name in names]
        self._caught = collections.deque()
        self._pid = os.getpid()
        self._wake = None

    def watch(self):
        """Keep signals from now on. Gives the descriptor that is readable when one came or a child ended."""
        self._wake = socket.socketpair()
        for end in self._wake:
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in self._numbers:
            if not _ignored_hangup(number):
                signal.signal(number, lambda number, _: self._caught.append(number))
        return self._wake[0].fileno()

    def drain(self):
        with contextlib.suppress(BlockingIOError):
            while self._wake[0].recv(4096):
                pass

    def take(self):
        caught = []
        while self._caught:
            caught.append(self._caught.popleft())
        return caught

    @contextlib.contextmanager
    def blocked(self):
        """Nothing comes in meanwhile. A child that was forked inside leaves with the default dispositions."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
        try:
            yield
        finally:
            if os.getpid() != self._pid:
                self._default()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _default(self):
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in self._numbers:
            if not _ignored_hangup(number):
                default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, default)
        for end in self._wake or ():
            end.close()
