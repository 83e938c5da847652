"""Checksums of files that a save_fn opens itself, computed while they are written.

Inside `Written`, a file of the checkpoint's directory that is opened for binary writing through Python's `open` (also
by pathlib, torch.save to a file object, torch.distributed.checkpoint) is counted and checksummed on the way. A file
that is written in another way, not in sequence, or changed afterwards is read back once.

No torch here.
"""

import builtins
import contextlib
import io
import os

from . import checkpoint

_WRITING = {"wb", "xb", "bw", "bx"}


class Written:
    """The files of one save. A context manager around save_fn; `entry` gives size and checksum of a file."""

    def __init__(self, directory):
        self._directory = directory
        self._inside = directory + os.sep
        self._files = {}  # relative name -> CheckedFile
        self._open = io.open

    def add(self, name):
        """Open a file for writing that is checksummed on the way."""
        path = os.path.join(self._directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = self._files[name] = checkpoint.CheckedFile(path)
        return file

    def __enter__(self):
        self._open = io.open
        io.open = builtins.open = self._watched
        return self

    def __exit__(self, *_):
        io.open = builtins.open = self._open

    def _watched(self, file, mode="r", buffering=-1, *args, **kwargs):
        if mode in _WRITING and not any(value is not None for value in (*args, *kwargs.values())):
            with contextlib.suppress(TypeError):
                path = os.path.abspath(os.fspath(file))
                if isinstance(path, str) and path.startswith(self._inside):
                    raw = checkpoint.CheckedFile(path, mode.replace("b", ""))
                    self._files[os.path.relpath(path, self._directory)] = raw
                    return raw if buffering == 0 else io.BufferedWriter(raw, buffering if buffering > 1 else 1 << 20)
        return self._open(file, mode, buffering, *args, **kwargs)

    def entry(self, name):
        path, file = os.path.join(self._directory, name), self._files.get(name)
        if file is not None and file.closed and file.holds(path):
            size, crc = file.bytes, file.crc
        else:
            size, crc = checkpoint.checksum(path)
        return {"name": name, "bytes": size, "crc32": checkpoint.hexadecimal(crc)}
