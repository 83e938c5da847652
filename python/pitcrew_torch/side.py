"""The side thread of a rank: heartbeat, the rank's socket, and `abort`.

Promises: it does no training work, touches no device and no disk, and takes no lock for long, so its heartbeat stands
still only when the process is stopped or something holds the GIL. It does not hold the GIL for long itself, whatever an
agent sends. It can end the process while the training thread is blocked in a dead collective. Agents may come, go and
be replaced at any time.

No torch here.
"""

import collections
import contextlib
import os
import threading
import time

from . import wire

BEAT = 0.2  # seconds
LEFT = 75  # exit code of a rank that leaves its attempt
FENCED = 76  # exit code of a rank whose checkpoint directory a later attempt has claimed
AT_A_STRETCH = 0.0002  # seconds of messages, then training has the GIL for as long


class Side(threading.Thread):
    """hello(): the greeting. on_message(connection, message). beat(now_ns): called every BEAT seconds."""

    def __init__(self, path, hello, on_message, beat):
        super().__init__(name="pitcrew", daemon=True)
        self._beat = beat
        self._outbox = collections.deque()
        self._said = threading.Event()
        self._ending = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        listening = None
        self.trouble = None
        if path is not None:
            try:
                listening = wire.listen(path)
            except OSError as error:
                self.trouble = error
        self._server = wire.Server(listening, hello, on_message, self._breathe)
        self._stretch = None  # when the current run of messages began
        self._server.also(self._wake_read, self._drain)

    def run(self):
        next_beat = time.monotonic()
        while not self._ending:
            now = time.monotonic()
            if now >= next_beat:
                self._beat(time.monotonic_ns())
                next_beat = max(next_beat + BEAT, now)
            try:
                self._stretch = None
                self._server.poll(max(0.0, next_beat - time.monotonic()))
                self._speak()
                self._breathe()
            except Exception as error:
                self.trouble = error
                time.sleep(0.05)  # a fault that repeats must not take the GIL from training
        self._server.close()

    def _breathe(self):
        """A flood of messages must not take the GIL from training for longer than a moment at a time."""
        now = time.perf_counter()
        if self._stretch is None:
            self._stretch = now
        elif now - self._stretch > AT_A_STRETCH:
            time.sleep(AT_A_STRETCH)
            self._stretch = None

    def say(self, message):
        """To every agent, from any thread; never blocks."""
        self._outbox.append((None, message))
        self._wake()

    def answer(self, connection, message):
        """To one agent, from any thread."""
        self._outbox.append((connection, message))
        self._wake()

    def flush(self, timeout):
        """Wait until what was said has been handed to the sockets, timeout seconds at most."""
        self._said.clear()
        self._outbox.append((None, None))
        self._wake()
        return self._said.wait(timeout) if self.is_alive() else False

    def stop(self):
        self._ending = True
        self._wake()

    def close_in_child(self):
        """After a fork, in the child: a data loader must not hold the rank's connections open when the rank dies."""
        self._server.close()
        for fd in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._wake_write = -1

    def _wake(self):
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"!")

    def _drain(self):
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _speak(self):
        while self._outbox:
            connection, message = self._outbox.popleft()
            if message is None:
                self._said.set()
            elif connection is None:
                self._server.broadcast(message)
            elif connection in self._server.connections:
                connection.send(message)


def leave(code=LEFT):
    """End this process now, without unwinding: the training thread may be blocked forever."""
    os._exit(code)
