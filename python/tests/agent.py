"""A small node agent for the tests: it dials a pod's sockets and speaks docs/hook-protocol.md."""

import collections
import json
import os
import time

from pitcrew_torch import ring, wire

PATIENCE = 90.0  # seconds; a current torch takes ten to import on a machine that is shared


def wait_until(true, timeout=PATIENCE, what="condition"):
    until = time.monotonic() + timeout
    while True:
        value = true()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError("waited %g s for: %s" % (timeout, what))
        time.sleep(0.005)


class Line:
    """One connection to a rank or a launcher. What is read and not asked for waits in `seen`."""

    def __init__(self, path, timeout=PATIENCE):
        def dial():
            try:
                return wire.connect(path, timeout)
            except OSError:
                return None

        self._sock = wait_until(dial, timeout, "socket %s" % path)
        self._in = b""
        self.seen = collections.deque()
        self.hello = self.expect("hello")

    def send(self, kind, **fields):
        self._sock.sendall(wire.encode(dict({"t": kind}, **fields)))

    def raw(self, data):
        self._sock.sendall(data)

    def _read(self):
        data = self._sock.recv(65536)
        if not data:
            raise EOFError
        self._in += data
        *lines, self._in = self._in.split(b"\n")
        self.seen.extend(json.loads(line) for line in lines)

    def expect(self, kind, timeout=PATIENCE, **fields):
        """The next message of this kind with these fields; others stay."""
        self._sock.settimeout(timeout)
        while True:
            for message in self.seen:
                if message["t"] == kind and all(message.get(k) == v for k, v in fields.items()):
                    self.seen.remove(message)
                    return message
            self._read()

    def closed(self, timeout=PATIENCE):
        """True once the other end has gone; messages before that stay in `seen`."""
        self._sock.settimeout(timeout)
        try:
            while True:
                self._read()
        except (EOFError, ConnectionError):
            return True

    def close(self):
        self._sock.close()


class Pod:
    """A pod's directory as the agent sees it."""

    def __init__(self, directory):
        self.directory = str(directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def launcher(self):
        return Line(self.path("launcher.sock"))

    def rank(self, local_rank, attempt=None):
        """A connection to the rank, of a given attempt where one is named (its socket replaces the old one's)."""

        def dial():
            try:
                line = Line(self.path("local-%d.sock" % local_rank))
            except (OSError, EOFError):
                return None
            if attempt is not None and line.hello["attempt"] != attempt:
                line.close()
                return None
            return line

        return wait_until(dial, PATIENCE, "local rank %d, attempt %s" % (local_rank, attempt))

    def ring(self, local_rank):
        try:
            return ring.read(self.path("local-%d.ring" % local_rank))["header"]
        except FileNotFoundError:
            return None

    def step(self, local_rank):
        header = self.ring(local_rank)
        return header["step"] if header else 0


def save_round(lines, req, attempt, at_step, exclude=(), deadline_ms=10_000):
    """Arm, hold and save on all ranks; gives each rank's `saved`, in order."""
    fields = {"req": req, "attempt": attempt}
    for line in lines:
        line.send("arm", at_step=at_step, deadline_ms=deadline_ms, exclude=list(exclude), **fields)
    for line in lines:
        line.expect("armed", req=req)
    for line in lines:
        line.send("go", **fields)
    for line in lines:
        line.expect("held", req=req)
    return [line.expect("saved", req=req) for line in lines]


def make_manifest(line, req, attempt, saved):
    files = [dict(f, rank=rank) for rank, message in enumerate(saved) for f in message["files"]]
    about = {
        "step": saved[0]["step"],
        "dir": saved[0]["dir"],
        "world_size": len(saved),
        "writers": list(range(len(saved))),
    }
    line.send("manifest", req=req, attempt=attempt, files=files, **about)
    return line.expect("manifested", req=req)
