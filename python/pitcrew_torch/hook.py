"""The hook: what one rank's process carries so that Pitcrew can see it, save it and end it.

Promises: nothing here raises into training (a failure becomes the ring's last error and one warning), nothing blocks it
except a hold that an agent armed, nothing synchronises a device. It works with no agent, and with one agent after
another. `resume` is the exception: it raises where no checkpoint can be used or this process must not write, because
training from nothing, or beside a later attempt, would be worse. A rank whose checkpoint directory a later attempt has
claimed ends with exit code 76.

No torch here: `torchstate` brings it, and the sandbox's stand-in trainer does without.
"""

import _thread
import atexit
import contextlib
import os
import sys
import threading
import time
import warnings

from .custody import Custody, LoadContext, looks_out
from .exchange import Alone
from .identity import Run, gpu_uuid, number, place, workload_of
from .ring import (
    EXIT_CLEAN,
    EXIT_EXCEPTION,
    FLAG_CAN_SAVE,
    FLAG_LAUNCHER,
    SECTIONS,
    Ring,
)
from .ringcopy import RingCopy
from .rounds import NEVER, Rounds
from .saver import Saver
from .side import FENCED, LEFT, Side, leave
from .steps import Steps

_now = time.monotonic_ns
STANDS = 2_000_000_000  # ns that a step may take at least, and three of its like, before the collectives are told
TELL_AGAIN = 5_000_000_000  # ns
LAST_WORDS = 0.2  # seconds an ending process waits for its last message to leave


class Hook:
    """One rank's hook. Users go through `pitcrew_torch.attach`."""

    def __init__(
        self,
        save_fn=None,
        load_fn=None,
        *,
        checkpoint_dir=None,
        checkpoint_every=None,
        strategy="custom",
        any_world_size=False,
        keep=3,
        exchange=Alone,
        distributed=lambda: None,
        also=None,
        also_load=None,
        torch_version="",
        gpu="",
        role=None,
        workload=None,
        environ=None,
    ):
        environ = os.environ if environ is None else environ
        here, run = place(environ, distributed()), Run(environ)
        self.rank, self.local_rank, self.world_size = here.rank, here.local_rank, here.world_size
        self.attempt = run.attempt
        self._distributed = distributed
        self.strategy = strategy
        self.checkpoint_dir = os.path.abspath(checkpoint_dir) if checkpoint_dir else None
        self._load_fn, self._also_load = load_fn, also_load
        self._any_world_size = any_world_size
        self._pid = os.getpid()
        self._warned = False
        self._attached = False  # whether training runs: trouble is then reported from another thread
        self._over = False
        self._code, self._code_at = 0, None
        self._failed = None

        self.can_save = bool(self.checkpoint_dir and save_fn and not here.problem)
        self._every = int(checkpoint_every or 0) if self.can_save else 0
        self.counted_by_call = False
        self.accumulation = None  # finds calls of `step` that end no step, where there is a torch optimizer
        self._by_optimizer = 0
        self._stop_counting = None
        self.collectives = None  # gives this rank's process groups, where there is a torch.distributed
        self._tell_at = 0
        self.at_end = []  # called when training is over

        directory = environ.get("PITCREW_DIR")
        flags = (FLAG_LAUNCHER if environ.get("PITCREW_LAUNCHER") else 0) | (FLAG_CAN_SAVE if self.can_save else 0)
        self.ring = self._make_ring(
            directory,
            rank=self.rank,
            local_rank=self.local_rank,
            world_size=self.world_size,
            attempt=self.attempt,
            flags=flags,
            gpu_uuid=gpu or gpu_uuid(environ, self.local_rank),
            torch_version=torch_version,
            job_uid=environ.get("PITCREW_JOB_UID", ""),
            role=environ.get("PITCREW_ROLE", "") if role is None else role,
            workload=workload_of(environ, workload),
        )
        self._rounds = Rounds(
            self.attempt, lambda: self.steps.done, lambda: self.can_save, lambda: self._over, self._say, self._leave
        )
        self.steps = Steps(self.ring, self._rounds, SECTIONS[0], self._periodic, self._hold, self.trouble)
        self.steps.save_at = self._every or NEVER
        self.step = self.steps.step
        self._saver = self._custody = None
        if self.checkpoint_dir:
            local_world = number(environ, "LOCAL_WORLD_SIZE", default=1)
            reads = looks_out(self.rank, self.local_rank, self.world_size, local_world)
            self._custody = Custody(
                self.checkpoint_dir, run, self._place, exchange, self._note, lambda: self.steps.done, self._fenced,
                take_over=environ.get("PITCREW_TAKE_OVER") == "1", seen=self.ring.claim if reads else None,
            )  # fmt: skip
        if self.can_save:
            self._saver = Saver(
                self.checkpoint_dir,
                save_fn,
                self.rank,
                self.world_size,
                self.attempt,
                keep,
                done=lambda step, ns, size: self.ring.checkpoint(step, _now(), ns, size),
                trouble=self.trouble,
                own=self._own,
                also=also,
                accepts=self._accepts,
                fenced=self._fenced,
                note=self._note,
            )
        self._copy = None
        if self.ring.copy_to is not None:
            self._start_copy(directory)
        self._side = None
        if directory:
            self._start_side(os.path.join(directory, "local-%d.sock" % self.local_rank))
        self._watch_the_end()
        if here.problem and self.checkpoint_dir and save_fn:
            self.trouble("no checkpoints are saved: %s" % here.problem)
        self._attached = directory is not None

    # ---- the training thread

    def step_of_optimizer(self):
        """The optimizer has stepped and nobody calls `step` (so far)."""
        self._by_optimizer += 1
        self.step()

    def count_by_optimizer(self, stop):
        """The optimizer's steps are counted. stop() ends that."""
        self._stop_counting = stop
        self.at_end.append(stop)

    def count_by_call(self):
        """The first call of `step` has come: from now on calls count, and what the optimizer counted is taken back."""
        self.counted_by_call = True
        if self._stop_counting is not None:
            self._stop_counting()
        self.steps.done -= self._by_optimizer

    def take_back(self, calls):
        """So many calls of `step` were counted and ended no step."""
        self.steps.done -= calls
        self.steps.save_at = self._save_after(self.steps.done)

    def _periodic(self, done):
        self.steps.save_at = self._save_after(done)
        if done % self._every == 0:
            with self.section("checkpoint"):
                self._saver.periodic(done)

    def _save_after(self, step):
        return step - step % self._every + self._every if self._every else NEVER

    def _hold(self, done):
        steps = self.steps
        before = steps.section
        self._rounds.hold(done, self._saver.asked, lambda held: steps.enter("held" if held else "checkpoint"))
        steps.enter(before)
        steps.last = _now()

    @contextlib.contextmanager
    def section(self, name):
        """What runs inside is not a training step: its time is judged apart."""
        steps = self.steps
        before, began, last, done = steps.section, _now(), steps.last, steps.done
        phases = steps.phases[:]
        try:
            steps.enter(name)
        except Exception as error:
            self.trouble(error)
        try:
            yield
        finally:
            try:
                steps.enter(before)
                now = _now()  # what was inside is no part of the next step, nested sections counted once
                steps.last = last + now - began if steps.done == done else now
                steps.phases[:] = phases
            except Exception as error:
                self.trouble(error)

    @property
    def phases(self):
        """ns of this step so far, in the order of ring.DATA ... ring.COMM, where it is measured."""
        return self.steps.phases

    @property
    def step_count(self):
        return self.steps.done

    def resume(self, step=0, fresh=False, read_only=False):
        """Load the newest sound checkpoint, the same on every rank. Gives the step to go on from, else `step`."""
        read_only = read_only or not self.can_save
        if self.checkpoint_dir and self._load_fn:
            self._agreed()
            manifest = self._custody.resume(self._load, self._accepts, fresh, read_only)
            step = step if manifest is None else manifest["step"]
        if read_only:
            self._stop_saving()
        self.steps.resumed(step)
        self.steps.save_at = self._save_after(step)
        self.ring.resumed(step, self.steps.last)
        return step

    def _load(self, context):
        self._load_fn(context)
        if self._also_load is not None:
            self._also_load(context)

    def _accepts(self, manifest):
        return self._any_world_size or manifest.get("world_size") == self._place()[1]

    def _place(self):
        return self._distributed() or (self.rank, self.world_size)

    def _own(self, acquire=True):
        if acquire:
            self._agreed()
        if not self.can_save:
            raise RuntimeError("this process does not save")
        return self._custody.own(acquire)

    def _agreed(self):
        """Stop saving where torch.distributed, initialized since, knows this rank by another number."""
        told = self._distributed()
        if self.can_save and told is not None and told != (self.rank, self.world_size):
            self._stop_saving()
            self.trouble(
                "no checkpoints are saved: attach() took this process for rank %d of %d, and torch.distributed says "
                "rank %d of %d: call attach() after init_process_group" % (self.rank, self.world_size, *told)
            )

    def _stop_saving(self):
        self.can_save, self._every = False, 0
        self.steps.save_at = NEVER

    # ---- the side thread

    def _make_ring(self, directory, **header):
        try:
            path = os.path.join(directory, "local-%d.ring" % self.local_rank) if directory else None
            return Ring.create(path, **header)
        except OSError as error:
            self._warn("no ring at %s (%s): the node agent cannot see this rank" % (directory, error))
            return Ring.create(None, **header)

    def _start_copy(self, directory):
        """The ring's file is not in memory: training must not wait for its disk."""
        if self.local_rank == 0:
            self._note(
                "PITCREW_DIR=%s is on %s, not in memory. Training does not wait for it, but the node agent sees each "
                "step up to 0.05 s late and loses the last ones of a killed rank. Mount the volume as "
                "emptyDir: {medium: Memory}" % (directory, self.ring.medium)
            )
        self._copy = RingCopy(self.ring, self.ring.copy_to, self.trouble)
        self._copy.start()

    def _flush_ring(self, over=False):
        """What the ring says last must reach a reader."""
        if self._copy is not None:
            self._copy.flush(LAST_WORDS, over)

    def _start_side(self, path):
        try:
            self._side = Side(path, self._hello, self._on_message, self._beat)
            if self._side.trouble is not None:
                self._warn("no socket at %s (%s): no checkpoint on demand" % (path, self._side.trouble))
            self._side.start()
        except Exception as error:
            self._side = None
            self._warn("no side thread (%s): no heartbeat, no checkpoint on demand" % error)

    def _beat(self, now):
        self.ring.beat(now)
        if self.collectives is not None and self.steps.section == "step" and now >= self._tell_at:
            age = now - self.steps.last
            if age > STANDS and age > 3 * self.ring.longest():
                self._tell_at = now + TELL_AGAIN
                self._tell_collectives()

    def _tell_collectives(self):
        try:
            groups = self.collectives()
        except Exception as error:
            self.collectives = None
            self.trouble(error)
            return
        if groups:
            self._say({"t": "collectives", "attempt": self.attempt, "step": self.steps.done, "groups": groups})

    def _hello(self):
        return {
            "t": "hello",
            "v": 1,
            "role": "rank",
            "rank": self.rank,
            "local_rank": self.local_rank,
            "world_size": self.world_size,
            "attempt": self.attempt,
            "pid": self._pid,
            "step": self.steps.done,
            "section": self.steps.section,
            "can_save": self.can_save,
            "strategy": self.strategy,
            "ckpt_dir": self.checkpoint_dir or "",
            "save_p99_s": self._saver.p99() if self._saver else 0.0,
        }

    def _on_message(self, connection, message):
        verb = message["t"]
        if self._rounds.handles(verb):
            for answer in self._rounds.handle(message):
                connection.send(answer)
        elif verb == "ping":
            connection.send({"t": "pong", "attempt": self.attempt, "pid": self._pid, **self.ring.now()})
        elif verb == "manifest":
            self._manifest(connection, message)
        elif verb == "abort" and message.get("attempt") == self.attempt:
            self.ring.error("left attempt %d: told to abort: %s" % (self.attempt, message.get("reason", "")))
            self.ring.set("exit", EXIT_EXCEPTION)
            self._flush_ring()
            leave()

    def _manifest(self, connection, message):
        about = {"req": message.get("req"), "attempt": self.attempt}
        if message.get("attempt") != self.attempt or self._saver is None:
            reason = "cannot-save" if self._saver is None else "attempt"
            connection.send({"t": "nack", "step": self.steps.done, "reason": reason, **about})
            return

        def write():  # waits for a disk: not on the thread that beats
            self._side.answer(connection, {"t": "manifested", **about, **self._saver.manifest(message)})

        threading.Thread(target=write, name="pitcrew-manifest", daemon=True).start()

    def _say(self, message):
        if self._side is not None:
            self._side.say(message)

    def _leave(self, why):
        self._last_words("left attempt %d: %s" % (self.attempt, why))
        leave()

    def _fenced(self, error):
        """A later attempt owns the checkpoint directory: this rank must not go on."""
        self._note(str(error))
        self._last_words("left attempt %d: %s" % (self.attempt, error))
        leave(FENCED)

    # ---- the end, and trouble

    def _watch_the_end(self):
        previous_hook, previous_exit = sys.excepthook, sys.exit

        def excepthook(kind, value, trace):
            self.crashed(value if value is not None else kind)
            previous_hook(kind, value, trace)

        def exit(code=None):
            self.exiting(code)
            previous_exit(code)

        sys.excepthook, sys.exit = excepthook, exit
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._in_child)

    def exiting(self, code):
        """The process is about to end with this code (as for sys.exit): 0 is a clean end, all else is not. Unless
        somebody catches it and trains on; in another thread it ends that thread alone."""
        if threading.current_thread() is threading.main_thread():
            self._code, self._code_at = 0 if code is None else code if isinstance(code, int) else 1, self.steps.done

    def crashed(self, error):
        """An exception that nobody caught is ending this process: say so at once, before the slow unwinding."""
        if os.getpid() == self._pid and self._failed is None:
            self._last_words("%s: %s" % (type(error).__name__, error))

    def _last_words(self, text):
        try:
            self._failed = (text.splitlines() or [""])[0][:500]
            self.ring.error(self._failed)
            self.ring.set("exit", EXIT_EXCEPTION)
            self._say({"t": "error", "attempt": self.attempt, "step": self.steps.done, "error": self._failed})
            self._flush_ring()
            if self._side is not None:
                self._side.flush(LAST_WORDS)
        except Exception:
            pass  # the process ends anyway, and its own exception matters more than ours

    def close(self):
        """Training is over in this process. Also called at exit; a second call does nothing."""
        if os.getpid() != self._pid or self._over:
            return
        try:
            self._over = True
            while self.at_end:
                self.at_end.pop()()
            if self._saver is not None and self._failed is None:
                self._saver.wait(10.0)  # the last periodic checkpoint's receipt and manifest
            if self._custody is not None:
                self._custody.end()
            self.steps.close()
            if self._failed is None and self._code and self._code_at == self.steps.done:
                self._last_words("exit code %d" % self._code)
            if self._failed is None:
                self.ring.set("exit", EXIT_CLEAN)
                self._say({"t": "bye", "attempt": self.attempt, "step": self.steps.done, "code": 0})
                if self._side is not None:
                    self._side.flush(LAST_WORDS)
            if self._side is not None:
                self._side.stop()
            self._flush_ring(over=True)
        except Exception as error:
            self.trouble(error)

    def _in_child(self):
        self.steps.leave()
        if self._side is not None:
            self._side.close_in_child()

    def trouble(self, error):
        text = error if isinstance(error, str) else "%s: %s" % (type(error).__name__, error)
        with contextlib.suppress(Exception):
            if os.getpid() == self._pid:
                self.ring.error(text)
        self._warn(text)

    def _warn(self, text):
        if not self._warned:
            self._warned = True
            if self._attached:  # a warning reads its source line from a disk and writes to a pipe
                _thread.start_new_thread(self._warn_now, (text,))
            else:
                self._warn_now(text)

    def _warn_now(self, text):
        with contextlib.suppress(Exception):
            warnings.warn("pitcrew: %s (further trouble is only in the ring)" % text, RuntimeWarning, stacklevel=3)

    def _note(self, text):
        with contextlib.suppress(Exception):
            print("pitcrew: %s" % text, file=sys.stderr, flush=True)


__all__ = ["FENCED", "LEFT", "Hook", "LoadContext"]
