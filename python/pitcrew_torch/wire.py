"""JSON lines over unix sockets that live in the pod's own directory.

Promises: sockets are bound through a directory file descriptor, so the path may be longer than the 107 bytes a unix
address holds; a peer that sends nonsense or does not read loses its connection and nothing else happens; nothing here
blocks. Not thread-safe: one thread owns a `Server`.

No torch here.
"""

import contextlib
import errno
import json
import os
import selectors
import socket

MAX_LINE_IN = 4 << 20  # from an agent: `manifest` names every rank's files
MAX_LINE_OUT = 64 << 10
MAX_PENDING = 1 << 20
CHUNK = 8192


def encode(message):
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def line(message):
    """The message as a line that an agent takes. One that is too long says so in place of its lists: a line that is
    cut, or that the agent refuses, would end the connection."""
    data = encode(message)
    if len(data) <= MAX_LINE_OUT:
        return data
    short = {name: value for name, value in message.items() if not isinstance(value, (list, dict))}
    return encode(dict(short, error="a message of %d bytes was not sent, at most %d" % (len(data), MAX_LINE_OUT)))


def decode(line):
    """The message of one line, or None for what is not an object with a text `t`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("t"), str) else None


def listen(path, backlog=16):
    """A non-blocking listening socket at path, put in place in one step over whatever an earlier process left."""
    directory, name = os.path.split(path)
    temporary = ".%s.%d" % (name, os.getpid())
    fd = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=fd)
            sock.bind("/proc/self/fd/%d/%s" % (fd, temporary))
            sock.listen(backlog)
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(fd)


def connect(path, timeout=5.0):
    """A blocking connection to the socket at path, whatever the path's length. For tests and tools."""
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.settimeout(timeout)
        try:
            sock.connect("/proc/self/fd/%d/%s" % (fd, os.path.basename(path)))
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(fd)


class Connection:
    """One agent. `send` never blocks: what the socket does not take waits here, up to MAX_PENDING bytes."""

    def __init__(self, server, sock):
        self._server = server
        self.sock = sock
        self._in = bytearray()
        self._out = bytearray()

    def send(self, message):
        self._out += line(message)
        self.flush()

    def flush(self):
        try:
            while self._out:
                del self._out[: self.sock.send(self._out)]
        except BlockingIOError:
            if len(self._out) > MAX_PENDING:
                self._server.drop(self)
                return
        except OSError:
            self._server.drop(self)
            return
        self._server.watch(self, writing=bool(self._out))

    def receive(self):
        """The whole messages that have come, one by one, of at most one CHUNK that ends a line: what is left makes the
        socket readable again. Drops the connection at its end or on an over-long line."""
        while True:
            try:
                data = self.sock.recv(CHUNK)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                data = b""
            if not data:
                self._server.drop(self)
                return
            first, newline, rest = data.partition(b"\n")
            self._in += first
            if len(self._in) > MAX_LINE_IN:
                self._server.drop(self)
                return
            if newline:
                break
        lines = [bytes(self._in), *rest.split(b"\n")]
        self._in = bytearray(lines.pop())
        for line in lines:
            message = decode(line)
            if message is not None:
                yield message


class Server:
    """The listening side: greets each agent, hands each message to `on_message(connection, message)`.

    The owner calls `poll(timeout)` in its loop; extra file descriptors (a wake-up pipe) are added with `also`.
    breathe() is called after each message.
    """

    def __init__(self, listening, hello, on_message, breathe=lambda: None):
        self._listening = listening
        self._hello = hello
        self._on_message = on_message
        self._breathe = breathe
        self._selector = selectors.DefaultSelector()
        self._extra = {}
        self.connections = set()
        if listening is not None:
            self._selector.register(listening, selectors.EVENT_READ, self._accept)

    def also(self, fd, callback):
        self._extra[fd] = callback
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def poll(self, timeout):
        for key, events in self._selector.select(timeout):
            if isinstance(key.data, Connection):
                if events & selectors.EVENT_WRITE:
                    key.data.flush()
                if events & selectors.EVENT_READ and key.data in self.connections:
                    for message in key.data.receive():
                        self._on_message(key.data, message)
                        self._breathe()
            else:
                key.data()

    def broadcast(self, message):
        for connection in list(self.connections):
            connection.send(message)

    def _accept(self):
        try:
            sock, _ = self._listening.accept()
        except OSError:
            return
        sock.setblocking(False)
        connection = Connection(self, sock)
        self.connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        connection.send(self._hello())

    def watch(self, connection, writing):
        if connection in self.connections:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
            if self._selector.get_key(connection.sock).events != events:
                self._selector.modify(connection.sock, events, connection)

    def drop(self, connection):
        if connection in self.connections:
            self.connections.discard(connection)
            self._selector.unregister(connection.sock)
            connection.sock.close()

    def close(self):
        """Close every descriptor of this process's copy; also right in a forked child."""
        for connection in list(self.connections):
            connection.sock.close()
        self.connections.clear()
        if self._listening is not None:
            self._listening.close()
        self._selector.close()
