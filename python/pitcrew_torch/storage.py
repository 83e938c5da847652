"""File calls on storage that several nodes share and that sometimes fails.

Promises: an I/O error that can pass is retried with a bound and then raised as `StorageError`, which names the call,
the path, the host and the remedy; a file written by `write_whole` is there with all of its content or not at all;
`names` lists a directory as the server has it now, not as this client remembers it.

An I/O error is never evidence that a file is damaged. docs/checkpoint-protocol.md lists what each file system promises.

No torch here.
"""

import contextlib
import ctypes
import errno
import json
import os
import socket
import stat
import threading
import time
import zlib

DELAYS = (0.05, 0.2, 0.5, 1.0, 2.0)  # seconds before each further try
IN_A_STEP = (0.02, 0.1)  # the same where training waits for it
_local = threading.local()

# Errors that another try cannot change. Every other error is retried: a server that fails over answers EIO, ESTALE,
# EACCES, ETIMEDOUT or ENOENT for a while, and EMFILE ends when another thread closes its files.
FINAL = frozenset(
    (
        errno.EDQUOT, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOSPC,
        errno.ENOSYS, errno.ENOTDIR, errno.ENOTEMPTY, errno.ENOTSUP, errno.EROFS, errno.EXDEV,
    )
)  # fmt: skip

REMEDIES = {
    errno.EACCES: "check the permissions of the directory and the user of this process",
    errno.EDQUOT: "raise the quota, or lower `keep`",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files (ulimit -n)",
    errno.ENOENT: "check that checkpoint_dir is mounted on this node; if the file is really gone, move its step "
    "directory out of checkpoint_dir",
    errno.ENOSPC: "free space, or lower `keep`",
    errno.EROFS: "mount the file system for writing, or pass read_only=True to resume() if this process only reads",
    errno.ESTALE: "mount the file system again on this node",
}
OTHERWISE = "check the file system and its mount on this node"


class StorageError(OSError):
    """A file call failed, and trying again did not help. `remedy` is the hint for an operator."""

    def __init__(self, call, path, error, tries):
        super().__init__(error.errno, error.strerror or str(error), path)
        self.call, self.tries = call, tries
        self.remedy = REMEDIES.get(error.errno, OTHERWISE)

    def __str__(self):
        tries = "" if self.tries < 2 else " after %d tries" % self.tries
        return "%s %s on %s: %s (%s)%s; %s" % (
            self.call, self.filename, host(), self.strerror, errno.errorcode.get(self.errno, self.errno), tries,
            self.remedy,
        )  # fmt: skip


def host():
    return os.environ.get("NODE_NAME") or socket.gethostname()


def retried(call, path, act, absent=None):
    """act(), tried again while its error can pass. absent: give this for a path that does not exist; None: an error."""
    for n, delay in enumerate((*getattr(_local, "delays", DELAYS), None), start=1):
        try:
            return act()
        except StorageError:
            raise  # tried again already
        except OSError as error:
            if error.errno == errno.ENOENT and absent is not None:
                return absent
            if delay is None or error.errno in FINAL:
                raise StorageError(call, path, error, n) from error
        time.sleep(delay)


@contextlib.contextmanager
def impatient():
    """In this thread, errors are retried only for as long as a training step can wait."""
    before = getattr(_local, "delays", DELAYS)
    _local.delays = IN_A_STEP
    try:
        yield
    finally:
        _local.delays = before


def size(path):
    return retried("stat", path, lambda: os.stat(path).st_size)


def exists(path):
    """Whether the path exists. An error that leaves the question open is raised."""
    return retried("stat", path, lambda: bool(os.stat(path)), absent=False)


def read(path, absent=None):
    """All bytes of a small file."""

    def act():
        with open(path, "rb") as f:
            return f.read()

    return retried("read", path, act, absent)


def make_directory(path):
    def act():
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError:  # also said where the look at what is there failed
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise

    retried("mkdir", path, act)


def remove(path):
    """Delete a file; one that is gone already is fine."""
    retried("unlink", path, lambda: os.unlink(path) or True, absent=False)


def sync(path):
    """Put a file's content, or a directory's names, on disk. An fsync that fails is not tried again: the kernel reports
    a lost page once, and the next fsync would succeed without it."""
    fd = retried("open", path, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    try:
        os.fsync(fd)
    except OSError as error:
        raise StorageError("fsync", path, error, 1) from error
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


def encode(value):
    return json.dumps(value, separators=(",", ":")).encode()


def write_whole(path, data, durable=True):
    """Write a small file by temporary file, fsync, rename, fsync of the directory. Returns the CRC of its bytes.
    Several threads and processes may write one path at once: the last rename wins whole."""
    temporary = "%s.%d.%d.tmp" % (path, os.getpid(), threading.get_ident())

    def act():
        try:
            with open(temporary, "wb", buffering=0) as f:
                view = memoryview(data)
                while len(view):
                    view = view[f.write(view) :]
                if durable:
                    os.fsync(f.fileno())
            os.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    retried("write", path, act)
    if durable:
        sync(os.path.dirname(path))
    return zlib.crc32(data)


_AT_FDCWD, _FORCE_SYNC, _BASIC = -100, 0x2000, 0x7FF
_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)  # glibc >= 2.28


def revalidate(path):
    """Ask the server for the directory's attributes now. A client of NFS otherwise trusts those that it remembers for
    up to a minute, and with them a listing that lacks the newest names."""
    if _statx is not None:
        _statx(_AT_FDCWD, os.fsencode(path), _FORCE_SYNC, _BASIC, ctypes.create_string_buffer(256))


def _absent(path):
    """Whether the directory above does not name the path, or is itself absent."""
    above, name = os.path.split(os.path.abspath(path))
    try:
        return name not in os.listdir(above)
    except FileNotFoundError:
        return above != path and _absent(above)


def names(path, absent=None):
    """The names in a directory, from the server. absent: give this for a directory that does not exist, which is
    believed only if the directory above does not name it either."""

    def act():
        revalidate(path)
        try:
            return os.listdir(path)
        except FileNotFoundError:
            if absent is None or not _absent(path):
                raise
            return absent

    return retried("list", path, act)


def listed(directory, name):
    """The bytes of a file that a listing of the directory named; b"" if it is no longer there."""
    try:
        return read(os.path.join(directory, name))
    except StorageError as error:
        if error.errno == errno.ENOENT and name not in names(directory):
            return b""
        raise
