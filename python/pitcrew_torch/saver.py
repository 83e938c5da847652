"""Saving: one rank's part of a checkpoint, asked for (a round) or periodic.

Promises: a save either gives the list of files that are on disk, with sizes and checksums, or an error's text; it never
raises. Before each write the claims are looked at; once a later attempt owns the directory nothing is written, and
`fenced` is called. For a periodic save the training thread only writes; putting the files on disk, the receipt, the
manifest and pruning are a second thread's work.

No torch here.
"""

import collections
import os
import queue
import threading
import time

from . import checkpoint, storage
from .claims import Fenced
from .written import Written

ASSEMBLE_WITHIN = 600.0  # seconds that rank 0 waits for the other ranks' receipts, beyond ten times its own save
POLL = (0.02, 1.0)  # seconds between two looks for receipts, at first and at most


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
        self.written = Written(directory)
        self._opened = set()

    @property
    def is_writer(self):
        return self.rank == self.writer

    def open(self, name):
        """A file of this checkpoint, for sequential writing; its checksum is computed on the way."""
        self._opened.add(name)
        return self.written.add(name)

    def names(self, named):
        """The files this rank wrote: opened here, named by save_fn's return value, else told by their names."""
        if named is None:
            named = () if self._opened else checkpoint.files_of(self.directory, self.rank, self.writer)
        elif isinstance(named, (str, os.PathLike)):
            named = [named]
        return {os.path.relpath(os.path.join(self.directory, n), self.directory) for n in named} | self._opened

    def entries(self, names):
        for name in names:
            if not checkpoint.safe(name):
                raise ValueError("save_fn named %r, which is outside %s" % (name, self.directory))
        return [self.written.entry(name) for name in sorted(names)]


class _Save:
    """What one save left on disk."""

    def __init__(self, step, directory, exclude, entries, owner, began):
        self.step, self.directory, self.exclude = step, directory, frozenset(exclude)
        self.entries, self.owner, self.began = entries, owner, began
        self.size = sum(e["bytes"] for e in entries)
        self.until = self.poll_at = 0.0
        self.poll = POLL[0]
        self.why = ""


class Saver:
    """done(step, save_ns, bytes): told when this rank's part is on disk. trouble(text): told of every failure.

    own(acquire): this attempt's ownership.Owner, or None for a directory that nobody claims (then nothing is pruned).
    With acquire it claims the directory, together with the other ranks, and may raise. also(context): writes more of
    this rank's state after save_fn. accepts(manifest): whether this job could resume from it. fenced(error): a later
    attempt owns the directory; ends this process."""

    def __init__(
        self, root, save_fn, rank, world_size, attempt, keep, done, trouble, own=lambda acquire=True: None, also=None,
        accepts=lambda manifest: True, fenced=None, note=lambda text: None,
    ):  # fmt: skip
        self.root = root
        self._save_fn = save_fn
        self._rank = rank
        self._world_size = world_size
        self._attempt = attempt
        self._keep = keep
        self._done = done
        self._trouble = trouble
        self._own, self._also, self._accepts, self._note = own, also, accepts, note
        self._fenced = fenced or (lambda error: trouble(str(error)))
        self._seconds = collections.deque(maxlen=64)
        self._last = None  # the newest _Save
        self._queue = queue.Queue()  # SimpleQueue.get waits forever if its timeout passes between its two looks
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
        began, directory = time.monotonic(), ""
        try:
            last = self._last if self._last is not None and self._last.step == step else None
            if last is not None and last.exclude == frozenset(exclude):
                save = last  # a periodic save of this very step; writing it twice would tear it
            else:
                with storage.impatient():
                    save = self._write(step, exclude, periodic=False, again=last is not None)
            directory = save.directory
            self._check(save)
            self._sync(save)
            entries = checkpoint.condensed(directory, self._rank, self._world_size, save.entries)
        except Fenced as error:
            self._fenced(error)
            return self._failed(step, directory, began, error)
        except Exception as error:
            return self._failed(step, directory, began, error)
        seconds = time.monotonic() - began
        self._seconds.append(seconds)
        self._done(step, int(seconds * 1e9), save.size)
        return {"dir": directory, "files": entries, "bytes": save.size, "seconds": round(seconds, 6)}

    def _failed(self, step, directory, began, error):
        text = "%s: %s" % (type(error).__name__, error)
        self._trouble("save of step %d failed: %s" % (step, text))
        seconds = round(time.monotonic() - began, 6)
        return {"dir": directory, "files": [], "bytes": 0, "seconds": seconds, "error": text[:500]}

    def periodic(self, step):
        """Training thread: write this rank's part; the rest happens on the side."""
        try:
            with storage.impatient():
                save = self._write(step, (), periodic=True)
        except Fenced as error:
            self._fenced(error)
            return
        except Exception as error:
            self._trouble("save of step %d failed: %s: %s" % (step, type(error).__name__, error))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish_all, name="pitcrew-files", daemon=True)
            self._thread.start()
        with self._lock:
            self._outstanding += 1
            self._idle.clear()
        self._queue.put(save)

    def _write(self, step, exclude, periodic, again=False):
        """again: a save of this step was written that holds the state of a rank now excluded."""
        began, owner = time.monotonic(), self._own()
        if owner is not None:
            owner.check()
        suffix = None if owner is None else owner.suffix
        directory = checkpoint.directory(self.root, step, self._attempt, suffix) + (checkpoint.ROUND if again else "")
        if storage.exists(os.path.join(directory, checkpoint.MANIFEST)):
            raise FileExistsError(
                "%s already holds a checkpoint: call resume() before training, or use an empty checkpoint_dir"
                % directory
            )
        storage.make_directory(directory)
        context = SaveContext(directory, step, self._attempt, self._rank, self._world_size, exclude, periodic)
        with context.written:
            names = context.names(self._save_fn(context))
            if self._also is not None:
                names |= set(self._also(context) or ())
        self._last = _Save(step, directory, exclude, context.entries(names), owner, began)
        return self._last

    @staticmethod
    def _check(save):
        if save.owner is not None:
            save.owner.check()

    @staticmethod
    def _sync(save):
        folders = {save.directory}
        for entry in save.entries:
            path = os.path.join(save.directory, entry["name"])
            storage.sync(path)
            folders.add(os.path.dirname(path))
        for folder in sorted(folders, reverse=True):
            storage.sync(folder)
        storage.sync(os.path.dirname(save.directory))

    def manifest(self, message):
        """Write the manifest an agent asks for. Gives the fields of `manifested`."""
        step, directory = message.get("step"), message.get("dir")
        try:
            owner = self._own(acquire=False)
            plain = checkpoint.directory(self.root, step, self._attempt, None if owner is None else owner.suffix)
            if type(step) is not int or directory not in (plain, plain + checkpoint.ROUND):
                raise checkpoint.Damaged("%r is not this rank's directory for step %r" % (directory, step))
            files, world = message.get("files"), message.get("world_size")
            if not isinstance(files, list) or not files or world != self._world_size:
                raise checkpoint.Damaged("manifest needs files and world_size %d" % self._world_size)
            crc = self._make(owner, directory, step, world, files, message.get("req", ""), False)
        except Fenced as error:
            self._fenced(error)
            return {"step": step, "dir": directory, "error": str(error)[:500]}
        except Exception as error:
            return {"step": step, "dir": directory, "error": ("%s: %s" % (type(error).__name__, error))[:500]}
        return {"step": step, "dir": directory, "crc32": checkpoint.hexadecimal(crc)}

    def _make(self, owner, directory, step, world, files, req, periodic):
        epoch, check = (0, lambda: None) if owner is None else (owner.epoch, owner.check)
        return checkpoint.write_manifest(directory, step, self._attempt, world, files, req, periodic, epoch, check)

    # ---- the second thread

    def _finish_all(self):
        pending = []  # saves this rank still has to assemble
        while True:
            try:
                wait = min(s.poll_at for s in pending) - time.monotonic() if pending else None
                save = self._queue.get(timeout=wait if wait is None else max(0.0, wait))
            except queue.Empty:
                pass
            else:
                if self._guarded(save.step, self._finish, save) and self._rank == 0:
                    pending.append(save)
                else:
                    self._settled(1)
            left = [s for s in pending if not self._assembled(s, {p.step for p in pending})]
            self._settled(len(pending) - len(left))
            pending = left

    def _guarded(self, step, act, *args):
        """act(*args), or None where it failed."""
        try:
            return act(*args)
        except Fenced as error:
            self._fenced(error)
        except Exception as error:
            self._trouble("checkpoint of step %d: %s: %s" % (step, type(error).__name__, error))
        return None

    def _settled(self, count):
        with self._lock:
            self._outstanding -= count
            if self._outstanding == 0:
                self._idle.set()

    def _finish(self, save):
        self._check(save)
        self._sync(save)
        entries = checkpoint.condensed(save.directory, self._rank, self._world_size, save.entries)
        epoch = 0 if save.owner is None else save.owner.epoch
        checkpoint.write_receipt(save.directory, self._rank, save.step, self._attempt, self._world_size, entries, epoch)
        seconds = time.monotonic() - save.began
        self._seconds.append(seconds)
        self._done(save.step, int(seconds * 1e9), save.size)
        save.until = time.monotonic() + ASSEMBLE_WITHIN + 10 * seconds
        return True

    def _assembled(self, save, busy):
        """True when there is nothing left to do for this save."""
        now = time.monotonic()
        if now < save.poll_at:
            return False
        try:
            if not storage.exists(os.path.join(save.directory, checkpoint.MANIFEST)):
                found = checkpoint.receipts(save.directory)
                self._make(save.owner, save.directory, save.step, found["world_size"], found["files"], "", True)
        except checkpoint.Incomplete as error:
            if not self._given_up(save, now):
                save.poll = min(POLL[1], save.poll * 1.3)
                save.poll_at = now + save.poll
                return False
            self._trouble(
                "checkpoint of step %d was never complete: %s within %.0f s; look at what those ranks report. Its "
                "folder is deleted after the next complete checkpoint" % (save.step, error, save.until - save.began)
            )
            return True
        except Fenced as error:
            self._fenced(error)
            return True
        except Exception as error:
            self._trouble("manifest of step %d: %s: %s" % (save.step, type(error).__name__, error))
            return True
        if save.owner is not None:
            self._guarded(save.step, save.owner.prune, self._keep, self._accepts, busy, self._note)
        return True

    @staticmethod
    def _given_up(save, looked):
        """Whether receipts that were missing at this time no longer come."""
        return looked >= save.until

    def wait(self, timeout):
        """Until the second thread has nothing left to do, timeout seconds at most."""
        return self._idle.wait(timeout)
