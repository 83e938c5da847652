"""Checkpoints on disk: docs/hook-protocol.md section 5.

Promises: a directory becomes a checkpoint by one rename, of `MANIFEST.json`, after everything it names is on disk; a
damaged one is renamed aside and never deleted; the chooser takes the newest that holds by (step, attempt).
Checksums are CRC-32 (zlib's): computed while writing where the file is written through `CheckedFile`.

No torch here.
"""

import contextlib
import json
import os
import re
import shutil
import threading
import time
import zlib

MANIFEST = "MANIFEST.json"
QUARANTINE = ".quarantine"
_DIRECTORY = re.compile(r"^step-(\d+)\.attempt-(\d+)$")
_RECEIPT = re.compile(r"^rank-(\d+)\.done\.json$")
_BY_RANK = re.compile(r"^(?:rank-|__)(\d+)(?:\D|$)")
_CHUNK = 4 << 20


class Damaged(Exception):
    """This directory is not a checkpoint; the text says why."""


def directory(root, step, attempt):
    return os.path.join(root, "step-%d.attempt-%d" % (step, attempt))


def parse_name(name):
    """(step, attempt) of a checkpoint directory's name, or None."""
    match = _DIRECTORY.match(name)
    return (int(match.group(1)), int(match.group(2))) if match else None


class CheckedFile:
    """A file for writing that counts and checksums what goes through it. Sequential writes only."""

    def __init__(self, path):
        self._file = open(path, "wb", buffering=0)
        self.bytes = 0
        self.crc = 0

    def write(self, data):
        view = memoryview(data).cast("B")
        self.crc = zlib.crc32(view, self.crc)
        self.bytes += len(view)
        while len(view):
            view = view[self._file.write(view) :]
        return len(data)

    def flush(self):
        pass

    def fileno(self):
        return self._file.fileno()

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def checksum(path):
    """(bytes, crc) of a file."""
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


def hexadecimal(crc):
    return "%08x" % (crc & 0xFFFFFFFF)


def sync(path):
    """Put a file, or a directory's names, on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_whole(path, value):
    """Write JSON by temp, fsync, rename, fsync directory. Returns the file's CRC. Several threads and processes may do
    so at once: each has a temporary file of its own, and the last rename wins whole."""
    data = json.dumps(value, separators=(",", ":")).encode()
    temporary = "%s.%d.%d.tmp" % (path, os.getpid(), threading.get_ident())
    with open(temporary, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.rename(temporary, path)
    sync(os.path.dirname(path))
    return zlib.crc32(data)


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
            if name == MANIFEST or name.endswith(".tmp") or _RECEIPT.match(name):
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


def write_receipt(path, rank, step, attempt, world_size, files):
    """A rank's part of a periodic checkpoint is complete and on disk."""
    value = {"v": 1, "rank": rank, "step": step, "attempt": attempt, "world_size": world_size, "files": files}
    _write_whole(os.path.join(path, receipt_name(rank)), value)


def write_manifest(path, step, attempt, world_size, files, req, periodic):
    """Make path a checkpoint. Refuses (Damaged) when a named file is missing or has another size. Returns the CRC."""
    for entry in files:
        name, size = entry.get("name"), entry.get("bytes")
        if not safe(name):
            raise Damaged("manifest names %r, which is outside the checkpoint's directory" % (name,))
        try:
            have = os.stat(os.path.join(path, name)).st_size
        except OSError as error:
            raise Damaged("%s: %s" % (name, error.strerror)) from error
        if have != size:
            raise Damaged("%s has %d bytes, not %s" % (name, have, size))
    return _write_whole(
        os.path.join(path, MANIFEST),
        {
            "v": 1,
            "step": step,
            "attempt": attempt,
            "world_size": world_size,
            "files": [{k: f[k] for k in ("name", "rank", "bytes", "crc32")} for f in files],
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "req": req,
            "periodic": bool(periodic),
        },
    )


def receipts(path):
    """The files of a complete set of receipts with its world size, or None while a rank's is missing."""
    found = {}
    for name in os.listdir(path):
        match = _RECEIPT.match(name)
        if match:
            try:
                with open(os.path.join(path, name), encoding="utf-8") as f:
                    found[int(match.group(1))] = json.load(f)
            except (OSError, ValueError):
                return None
    worlds = {r.get("world_size") for r in found.values()}
    if len(worlds) != 1 or set(found) != set(range(worlds.copy().pop() or 0)):
        return None
    files = [dict(f, rank=rank) for rank in sorted(found) for f in found[rank].get("files", ())]
    return {"v": 1, "world_size": worlds.pop(), "files": files, "req": "", "periodic": True}


def load_manifest(path):
    """What a checkpoint directory says it holds: its manifest, else a complete set of receipts. Raises Damaged."""
    step, attempt = parse_name(os.path.basename(path))
    try:
        with open(os.path.join(path, MANIFEST), encoding="utf-8") as f:
            manifest = json.load(f)
    except FileNotFoundError:
        manifest = receipts(path)
        if manifest is None:
            raise Damaged("no %s and not every rank's receipt" % MANIFEST) from None
        manifest.update(step=step, attempt=attempt)
    except (OSError, ValueError) as error:
        raise Damaged("%s: %s" % (MANIFEST, error)) from error
    if not isinstance(manifest, dict) or manifest.get("v") != 1:
        raise Damaged("%s: not a version 1 manifest" % MANIFEST)
    if (manifest.get("step"), manifest.get("attempt")) != (step, attempt):
        raise Damaged("%s: is of step %s, attempt %s" % (MANIFEST, manifest.get("step"), manifest.get("attempt")))
    files = manifest.get("files")
    if not isinstance(files, list) or not files:
        raise Damaged("%s: names no files" % MANIFEST)
    for entry in files:
        if not (isinstance(entry, dict) and safe(entry.get("name")) and isinstance(entry.get("crc32"), str)):
            raise Damaged("%s: bad entry %r" % (MANIFEST, entry))
        try:
            size = os.stat(os.path.join(path, entry["name"])).st_size
        except OSError as error:
            raise Damaged("%s: %s" % (entry["name"], error.strerror)) from error
        if size != entry.get("bytes"):
            raise Damaged("%s has %d bytes, not %s" % (entry["name"], size, entry.get("bytes")))
    return manifest


def verify(path, files):
    """Read the files and compare checksums. Raises Damaged."""
    for entry in files:
        try:
            _, crc = checksum(os.path.join(path, entry["name"]))
        except OSError as error:
            raise Damaged("%s: %s" % (entry["name"], error.strerror)) from error
        if hexadecimal(crc) != entry["crc32"]:
            raise Damaged("%s: checksum %s, not %s" % (entry["name"], hexadecimal(crc), entry["crc32"]))


def candidates(root):
    """Checkpoint directories of root, newest first by (step, attempt). A missing root has none."""
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return []
    named = [(parse_name(name), os.path.join(root, name)) for name in names if parse_name(name)]
    return [path for key, path in sorted(named, reverse=True) if os.path.isdir(path)]


def quarantine(path):
    """Rename a damaged directory aside, keeping what an earlier one of that name left. Returns the new path or None."""
    for n in range(100):
        aside = path + QUARANTINE + (".%d" % n if n else "")
        if os.path.lexists(aside):
            continue
        try:
            os.rename(path, aside)
        except OSError:
            return None
        return aside
    return None


def prune(root, keep):
    """Delete all but the newest `keep` checkpoints that have a manifest. Directories without one are left alone:
    a save may be under way in them, and the chooser judges them at the next resume."""
    complete = [path for path in candidates(root) if os.path.exists(os.path.join(path, MANIFEST))]
    for path in complete[keep:]:
        # The manifest goes first, so that a deletion cut short leaves nothing that claims to be a checkpoint.
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, MANIFEST))
        for name in os.listdir(path):
            if _RECEIPT.match(name):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(path, name))
        shutil.rmtree(path, ignore_errors=True)
