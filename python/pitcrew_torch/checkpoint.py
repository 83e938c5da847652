"""Checkpoints on disk: docs/hook-protocol.md section 5.

Promises: a directory becomes a checkpoint by one rename, of `MANIFEST.json`, after everything it names is on disk; only
content that contradicts itself is damage (`Damaged`), an I/O error is a `storage.StorageError`; a damaged directory is
renamed aside and never deleted. Checksums are CRC-32 (zlib's), computed while writing where the file is written through
`CheckedFile`.

No torch here.
"""

import contextlib
import io
import json
import os
import re
import time
import zlib

from . import storage
from .storage import write_whole

MANIFEST = "MANIFEST.json"
QUARANTINE = ".quarantine"
PRUNED = ".pruned"
ROUND = ".round"  # of a round that excludes ranks, at a step that has a periodic checkpoint already
_DIRECTORY = re.compile(r"^step-(\d+)\.attempt-(\d+)(?:\.epoch-(\d+))?(?:\.round)?$")
_RECEIPT = re.compile(r"^rank-(\d+)\.done\.json$")
_LIST = re.compile(r"^rank-(\d+)\.files\.json$")
_BY_RANK = re.compile(r"^(?:rank-|__)(\d+)(?:\D|$)")
_CHUNK = 4 << 20

# A rank's list of files travels in one line of the rank protocol (64 KiB) and all ranks' lists in one message of the
# bus (1 MiB). A list that is longer than its share is a file of its own, and the list's entry stands for it.
LIST_ROOM = 32 << 10  # bytes
LISTS_ROOM = 700 << 10  # bytes, for all ranks
LIST_LIMIT = 64 << 20  # bytes of a list file that are read


class Damaged(Exception):
    """This directory's content contradicts itself; the text says where."""


class Incomplete(Exception):
    """No manifest and not every rank's receipt: a save is under way here, or was cut short."""


def directory(root, step, attempt, epoch=None):
    """A checkpoint's path. epoch: named only if an earlier claim of the root used the same attempt number."""
    return os.path.join(root, "step-%d.attempt-%d%s" % (step, attempt, "" if epoch is None else ".epoch-%d" % epoch))


def parse_name(name):
    """(step, attempt, epoch or None) of a checkpoint directory's name, or None."""
    match = _DIRECTORY.match(name)
    return (int(match.group(1)), int(match.group(2)), match.group(3) and int(match.group(3))) if match else None


class CheckedFile(io.RawIOBase):
    """A file for writing that counts and checksums what goes through it. `checked` turns False when something is not
    written in sequence; the file has to be read back then."""

    def __init__(self, path, mode="w"):
        super().__init__()
        self._file = io.FileIO(path, mode)
        self.name = path
        self.bytes = 0
        self.crc = 0
        self.checked = True
        self._left = None  # what the file looked like when it was closed

    def write(self, data):
        view = memoryview(data).cast("B")
        total = len(view)
        self.crc = zlib.crc32(view, self.crc)
        self.bytes += total
        while len(view):
            view = view[self._file.write(view) :]
        return total

    def writable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self._file.tell()

    def seek(self, offset, whence=os.SEEK_SET):
        before = self._file.tell()
        after = self._file.seek(offset, whence)
        self.checked = self.checked and after == before
        return after

    def truncate(self, length=None):
        self.checked = False
        return self._file.truncate(length)

    def fileno(self):
        return self._file.fileno()

    def close(self):
        if not self.closed:
            try:
                self._left = _look(os.fstat(self._file.fileno()))
            finally:
                try:
                    self._file.close()
                finally:
                    super().close()

    def holds(self, path):
        """Whether the file at path is still what went through here."""
        return self.checked and self._left == _look(os.stat(path)) and self._left[1] == self.bytes


def _look(status):
    return status.st_ino, status.st_size, status.st_mtime_ns


def checksum(path, progress=None):
    """(bytes, crc) of a file. progress(bytes) is told of each chunk."""

    def act():
        crc = total = 0
        buffer = bytearray(_CHUNK)
        view = memoryview(buffer)
        with open(path, "rb", buffering=0) as f:
            while True:
                n = f.readinto(buffer)
                if not n:
                    return total, crc
                crc = zlib.crc32(view[:n], crc)
                total += n
                if progress is not None:
                    progress(n)

    return storage.retried("read", path, act)


def hexadecimal(crc):
    return "%08x" % (crc & 0xFFFFFFFF)


def owner(name, writer):
    """The rank a file belongs to by its name: `rank-<R>…` and DCP's `__<R>_…` say so, the rest is the writer's."""
    match = _BY_RANK.match(os.path.basename(name))
    return int(match.group(1)) if match else writer


def files_of(path, rank, writer):
    """Names (relative) of one rank's files in a checkpoint directory, by `owner`."""
    names = []
    for base, _, files in os.walk(path):
        for file in files:
            name = os.path.relpath(os.path.join(base, file), path)
            if name == MANIFEST or name.endswith(".tmp") or _RECEIPT.match(name) or _LIST.match(name):
                continue
            if owner(name, writer) == rank:
                names.append(name)
    return sorted(names)


def safe(name):
    """True for a relative name that stays inside its directory."""
    return (
        isinstance(name, str)
        and name != ""
        and not os.path.isabs(name)
        and os.path.normpath(name) == name
        and not name.startswith("..")
    )


def receipt_name(rank):
    return "rank-%d.done.json" % rank


def list_name(rank):
    return "rank-%d.files.json" % rank


def condensed(path, rank, world_size, entries):
    """The entries, or the one entry of a list file that stands for them where they take more than their room."""
    data = storage.encode({"v": 1, "files": entries})
    if len(data) <= min(LIST_ROOM, LISTS_ROOM // max(1, world_size)) or len(entries) < 2:
        return entries
    name = list_name(rank)
    crc = write_whole(os.path.join(path, name), data)
    return [{"name": name, "bytes": len(data), "crc32": hexadecimal(crc)}]


def expanded(path, entry):
    """The files that an entry stands for: those of a list file, with the list itself first. Raises Damaged."""
    if not _LIST.match(entry["name"]):
        return [entry]
    if entry.get("bytes", 0) > LIST_LIMIT:
        raise Damaged("%s: a list of %d bytes, at most %d" % (entry["name"], entry["bytes"], LIST_LIMIT))
    data = storage.read(os.path.join(path, entry["name"]))
    if hexadecimal(zlib.crc32(data)) != entry["crc32"]:
        raise Damaged("%s: checksum %s, not %s" % (entry["name"], hexadecimal(zlib.crc32(data)), entry["crc32"]))
    return [entry, *(dict(f, rank=entry.get("rank")) for f in _entries(entry["name"], _json(entry["name"], data)))]


def _json(name, data):
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged("%s: %s" % (name, error)) from error
    if not isinstance(value, dict) or value.get("v") != 1:
        raise Damaged("%s: not of version 1" % name)
    return value


def _entries(name, value):
    files = value.get("files")
    if not isinstance(files, list) or not files:
        raise Damaged("%s: names no files" % name)
    for entry in files:
        if not (isinstance(entry, dict) and safe(entry.get("name")) and isinstance(entry.get("crc32"), str)):
            raise Damaged("%s: bad entry %r" % (name, entry))
    return files


def write_receipt(path, rank, step, attempt, world_size, files, epoch=0):
    """A rank's part of a periodic checkpoint is complete and on disk."""
    value = {
        "v": 1, "rank": rank, "step": step, "attempt": attempt, "epoch": epoch, "world_size": world_size,
        "files": files,
    }  # fmt: skip
    write_whole(os.path.join(path, receipt_name(rank)), storage.encode(value))


def write_manifest(path, step, attempt, world_size, files, req, periodic, epoch=0, check=lambda: None):
    """Make path a checkpoint. Refuses (Damaged) when a named file has another size. check() is called right before the
    rename. Returns the CRC."""
    for entry in files:
        if not safe(entry.get("name")):
            raise Damaged("manifest names %r, which is outside the checkpoint's directory" % (entry.get("name"),))
        _same_size(path, entry)
    data = storage.encode(
        {
            "v": 1,
            "step": step,
            "attempt": attempt,
            "epoch": epoch,
            "world_size": world_size,
            "files": [{k: f[k] for k in ("name", "rank", "bytes", "crc32")} for f in files],
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "req": req,
            "periodic": bool(periodic),
        }
    )
    check()
    return write_whole(os.path.join(path, MANIFEST), data)


def _same_size(path, entry):
    have = storage.size(os.path.join(path, entry["name"]))
    if have != entry.get("bytes"):
        raise Damaged("%s has %d bytes, not %s" % (entry["name"], have, entry.get("bytes")))


def receipts(path, listed=None):
    """The files of a complete set of receipts with its world size. Raises Incomplete while a rank's is missing.
    listed: the directory's names, where they are known."""
    listed = storage.names(path, absent=[]) if listed is None else listed
    there = {int(match.group(1)): name for name in listed for match in [_RECEIPT.match(name)] if match}
    if not there:
        raise Incomplete("no %s and no receipt" % MANIFEST)
    first = _receipt(path, there[min(there)])
    world = first["world_size"]
    missing = [str(rank) for rank in range(world) if rank not in there]
    if missing:
        more = " and %d others" % (len(missing) - 8) if len(missing) > 8 else ""
        raise Incomplete("no receipt of rank %s%s" % (", ".join(missing[:8]), more))
    found = {rank: _receipt(path, name) for rank, name in there.items()}
    if len({(r["world_size"], r.get("epoch", 0)) for r in found.values()}) != 1 or len(found) != world:
        raise Incomplete("receipts of several saves")
    files = [dict(f, rank=rank) for rank in sorted(found) for f in found[rank]["files"]]
    return {"v": 1, "world_size": world, "epoch": first.get("epoch", 0), "files": files, "req": "", "periodic": True}


def _receipt(path, name):
    try:
        receipt = _json(name, storage.read(os.path.join(path, name)))
        _entries(name, receipt)
    except Damaged as error:
        raise Incomplete(str(error)) from None
    if type(receipt.get("world_size")) is not int:
        raise Incomplete("%s names no world size" % name)
    return receipt


def read_manifest(path):
    """What a checkpoint directory says it holds: its manifest, else a complete set of receipts. Raises Incomplete
    without either, Damaged where the text contradicts itself. The files are not looked at."""
    step, attempt, epoch = parse_name(os.path.basename(path))
    listed = storage.names(path)
    if MANIFEST in listed:
        manifest = _json(MANIFEST, storage.read(os.path.join(path, MANIFEST)))
    else:
        manifest = receipts(path, listed)
        manifest.update(step=step, attempt=attempt)
    if (manifest.get("step"), manifest.get("attempt")) != (step, attempt):
        raise Damaged("%s: is of step %s, attempt %s" % (MANIFEST, manifest.get("step"), manifest.get("attempt")))
    manifest.setdefault("epoch", 0)
    if type(manifest["epoch"]) is not int or (epoch is not None and manifest["epoch"] != epoch):
        raise Damaged("%s: is of epoch %s, not %s" % (MANIFEST, manifest["epoch"], epoch))
    _entries(MANIFEST, manifest)
    return manifest


def load_manifest(path):
    """read_manifest, with the size of every file that it names compared."""
    manifest = read_manifest(path)
    for entry in manifest["files"]:
        _same_size(path, entry)
    return manifest


def verify(path, files, progress=None):
    """Compare the sizes, then the checksums, of the files and of those that a list among them names. Raises Damaged."""
    for entry in files:
        _same_size(path, entry)
    for entry in files:
        for each in expanded(path, entry):
            size, crc = checksum(os.path.join(path, each["name"]), progress)
            if size != each.get("bytes"):
                raise Damaged("%s has %d bytes, not %s" % (each["name"], size, each.get("bytes")))
            if hexadecimal(crc) != each["crc32"]:
                raise Damaged("%s: checksum %s, not %s" % (each["name"], hexadecimal(crc), each["crc32"]))


def candidates(root, listed=None):
    """Names of checkpoint directories of root, newest first by (step, epoch, attempt). A missing root has none."""
    listed = storage.names(root, absent=[]) if listed is None else listed
    named = [(parse_name(name), name) for name in listed]
    return [name for _, name in sorted(((k[0], k[2] or 0, k[1]), n) for k, n in named if k)[::-1]]


def quarantine(path):
    """Rename a damaged directory aside, keeping what an earlier one of that name left. Returns the new path or None."""
    for n in range(100):
        aside = path + QUARANTINE + (".%d" % n if n else "")
        if os.path.lexists(aside):
            continue
        with contextlib.suppress(OSError):
            os.rename(path, aside)
            return aside
        return None
    return None
