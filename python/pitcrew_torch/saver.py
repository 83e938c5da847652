"""Saving: one rank's part of a checkpoint, asked for (a round) or periodic.

Promises: a save either gives the list of files that are on disk, with sizes and checksums, or an error's text; it never
raises. For a periodic save the training thread only writes; putting the files on disk, the receipt, the manifest and
pruning are a second thread's work.

No torch here.
"""

import collections
import os
import queue
import threading
import time

from . import checkpoint

ASSEMBLE_WITHIN = 600.0  # seconds the writer waits for the other ranks' receipts


class SaveContext:
    """What a save_fn gets. All ranks are called at the same step, so it may be collective.

    directory (exists, shared by the ranks), step, attempt, rank, world_size, writer (the rank that writes what the
    ranks have in common), exclude (ranks whose GPU is not to be trusted), periodic.
    """

    def __init__(self, directory, step, attempt, rank, world_size, exclude, periodic):
        self.directory = directory
        self.step = step
        self.attempt = attempt
        self.rank = rank
        self.world_size = world_size
        self.exclude = frozenset(exclude)
        self.writer = next((r for r in range(world_size) if r not in self.exclude), 0)
        self.periodic = periodic
        self._opened = {}

    @property
    def is_writer(self):
        return self.rank == self.writer

    def open(self, name):
        """A file of this checkpoint, for sequential writing; its checksum is computed on the way."""
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._opened[name] = checkpoint.CheckedFile(path)
        return self._opened[name]

    def entries(self, named):
        """The files this rank wrote: opened here, named by save_fn's return value, else told by their names."""
        if named is None:
            named = () if self._opened else checkpoint.files_of(self.directory, self.rank, self.writer)
        elif isinstance(named, (str, os.PathLike)):
            named = [named]
        names = [os.path.relpath(os.path.join(self.directory, n), self.directory) for n in named]
        found = []
        for name in sorted({*names, *self._opened}):
            if not checkpoint.safe(name):
                raise ValueError("save_fn named %r, which is outside %s" % (name, self.directory))
            file = self._opened.get(name)
            size, crc = (file.bytes, file.crc) if file else checkpoint.checksum(os.path.join(self.directory, name))
            found.append({"name": name, "bytes": size, "crc32": checkpoint.hexadecimal(crc)})
        return found


class Saver:
    """done(step, save_ns, bytes): told when this rank's part is on disk. trouble(text): told of every failure."""

    def __init__(self, root, save_fn, rank, world_size, attempt, keep, done, trouble):
        self.root = root
        self._save_fn = save_fn
        self._rank = rank
        self._world_size = world_size
        self._attempt = attempt
        self._keep = keep
        self._done = done
        self._trouble = trouble
        self._seconds = collections.deque(maxlen=64)
        self._last = None  # (step, directory, entries) of the newest save
        self._queue = queue.SimpleQueue()
        self._thread = None
        self._lock = threading.Lock()
        self._outstanding = 0
        self._idle = threading.Event()
        self._idle.set()

    def p99(self):
        """Seconds: the slowest of the last 64 saves; 0 when there was none."""
        return max(self._seconds, default=0.0)

    def asked(self, step, exclude):
        """A round's save, on disk when this returns. Gives the fields of `saved`."""
        began = time.monotonic()
        directory = checkpoint.directory(self.root, step, self._attempt)
        try:
            # A periodic save of this very step has written the same state already; writing it twice would tear it.
            again = self._last is not None and self._last[0] == step
            entries = self._last[2] if again else self._write(step, exclude, periodic=False)
            self._sync(directory, entries)
        except Exception as error:
            text = "%s: %s" % (type(error).__name__, error)
            self._trouble("save of step %d failed: %s" % (step, text))
            seconds = round(time.monotonic() - began, 6)
            return {"dir": directory, "files": [], "bytes": 0, "seconds": seconds, "error": text[:500]}
        seconds = time.monotonic() - began
        self._seconds.append(seconds)
        size = sum(e["bytes"] for e in entries)
        self._done(step, int(seconds * 1e9), size)
        return {"dir": directory, "files": entries, "bytes": size, "seconds": round(seconds, 6)}

    def periodic(self, step):
        """Training thread: write this rank's part; the rest happens on the side."""
        began = time.monotonic()
        try:
            entries = self._write(step, (), periodic=True)
        except Exception as error:
            self._trouble("save of step %d failed: %s: %s" % (step, type(error).__name__, error))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish_all, name="pitcrew-files", daemon=True)
            self._thread.start()
        with self._lock:
            self._outstanding += 1
            self._idle.clear()
        self._queue.put((step, checkpoint.directory(self.root, step, self._attempt), entries, began))

    def _write(self, step, exclude, periodic):
        directory = checkpoint.directory(self.root, step, self._attempt)
        if os.path.exists(os.path.join(directory, checkpoint.MANIFEST)):
            raise FileExistsError(
                "%s already holds a checkpoint: call resume() before training, or use an empty checkpoint_dir"
                % directory
            )
        os.makedirs(directory, exist_ok=True)
        context = SaveContext(directory, step, self._attempt, self._rank, self._world_size, exclude, periodic)
        entries = context.entries(self._save_fn(context))
        self._last = (step, directory, entries)
        return entries

    @staticmethod
    def _sync(directory, entries):
        folders = {directory}
        for entry in entries:
            path = os.path.join(directory, entry["name"])
            checkpoint.sync(path)
            folders.add(os.path.dirname(path))
        for folder in sorted(folders, reverse=True):
            checkpoint.sync(folder)
        checkpoint.sync(os.path.dirname(directory))

    def manifest(self, message):
        """Write the manifest an agent asks for. Gives the fields of `manifested`."""
        step, directory = message.get("step"), message.get("dir")
        try:
            if type(step) is not int or directory != checkpoint.directory(self.root, step, self._attempt):
                raise checkpoint.Damaged("%r is not this rank's directory for step %r" % (directory, step))
            files, world = message.get("files"), message.get("world_size")
            if not isinstance(files, list) or not files or world != self._world_size:
                raise checkpoint.Damaged("manifest needs files and world_size %d" % self._world_size)
            crc = checkpoint.write_manifest(directory, step, self._attempt, world, files, message.get("req", ""), False)
        except Exception as error:
            return {"step": step, "dir": directory, "error": ("%s: %s" % (type(error).__name__, error))[:500]}
        return {"step": step, "dir": directory, "crc32": checkpoint.hexadecimal(crc)}

    def _finish_all(self):
        pending = []  # directories this rank still has to assemble
        while True:
            try:
                step, directory, entries, began = self._queue.get(timeout=0.02 if pending else None)
            except queue.Empty:
                pass
            else:
                try:
                    self._finish(step, directory, entries, began)
                except Exception as error:
                    self._trouble("checkpoint of step %d: %s: %s" % (step, type(error).__name__, error))
                    self._settled(1)
                else:
                    if self._rank == 0:
                        pending.append((step, directory, time.monotonic() + ASSEMBLE_WITHIN))
                    else:
                        self._settled(1)
            left = [p for p in pending if not self._assemble(*p)]
            self._settled(len(pending) - len(left))
            pending = left

    def _settled(self, count):
        with self._lock:
            self._outstanding -= count
            if self._outstanding == 0:
                self._idle.set()

    def _finish(self, step, directory, entries, began):
        self._sync(directory, entries)
        checkpoint.write_receipt(directory, self._rank, step, self._attempt, self._world_size, entries)
        seconds = time.monotonic() - began
        self._seconds.append(seconds)
        self._done(step, int(seconds * 1e9), sum(e["bytes"] for e in entries))

    def _assemble(self, step, directory, until):
        """True when there is nothing left to do for this directory."""
        try:
            found = checkpoint.receipts(directory)
            if found is None:
                return time.monotonic() > until
            if not os.path.exists(os.path.join(directory, checkpoint.MANIFEST)):
                checkpoint.write_manifest(
                    directory, step, self._attempt, found["world_size"], found["files"], "", periodic=True
                )
            checkpoint.prune(self.root, self._keep)
        except Exception as error:
            self._trouble("manifest of step %d: %s: %s" % (step, type(error).__name__, error))
        return True

    def wait(self, timeout):
        """Until the second thread has nothing left to do, timeout seconds at most."""
        return self._idle.wait(timeout)
