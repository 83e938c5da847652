"""One attempt's workers on this node: forked from the warm process where that is safe, executed afresh elsewhere.

Promises: each worker is its own process group, and a signal goes to the whole of it. A worker does not outlive the
launcher. A fork happens only from a process with one thread and no open GPU device. A forked child never runs the
launcher's code: it unwinds to `run` or ends.

No torch here.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import random
import signal
import sys
import traceback

PR_SET_PDEATHSIG = 1
TORCH_SEED = 67280421310721  # what torch's default generator starts with in a fresh process
_libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass(frozen=True)
class Assignment:
    """This node's place in one attempt."""

    attempt: int
    node_rank: int
    nnodes: int
    nproc: int
    world_size: int
    master_addr: str
    master_port: int
    by: str = "launcher"  # who numbered the attempt: the launcher, or the "agent" for all launchers of the job

    def environment(self, local_rank, options):
        """What torchrun sets for a worker, and the attempt."""
        return {
            "RANK": str(self.node_rank * self.nproc + local_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.nproc),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.nnodes),
            "ROLE_RANK": str(self.node_rank * self.nproc + local_rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "TORCHELASTIC_RESTART_COUNT": str(self.attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(options.max_restarts),
            "TORCHELASTIC_RUN_ID": options.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 makes the store itself
            "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(options.signals),
            **_nccl_error_handling(),
            "PITCREW_ATTEMPT": str(self.attempt),
            "PITCREW_ATTEMPT_BY": self.by,
            "PITCREW_LAUNCHER": "1",
        }


def _nccl_error_handling():
    """torchrun's default: a rank whose collective failed is ended. The variable got another name in torch 2.2."""
    version = getattr(sys.modules.get("torch"), "__version__", "2.2").split(".")
    old = version[0] == "1" or version[:2] in (["2", "0"], ["2", "1"])
    name = "NCCL_ASYNC_ERROR_HANDLING" if old else "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    return {name: os.environ.get(name, "1")}


class BecomeWorker(BaseException):
    """Raised in a forked child, so that it unwinds the launcher and runs the script from the bottom of the stack."""


def why_not_fork(task_dir="/proc/self/task", fd_dir="/proc/self/fd"):
    """Why this process cannot be forked safely, or None."""
    threads = len(os.listdir(task_dir))
    if threads != 1:
        return "%d threads are running" % threads
    for fd in os.listdir(fd_dir):
        with contextlib.suppress(OSError):
            target = os.readlink(os.path.join(fd_dir, fd))
            if target.startswith("/dev/nvidia"):
                return "%s is open" % target
    return None


class Workers:
    """The workers of one attempt. `pids` maps a running worker's pid to its local rank."""

    def __init__(self, assignment, options, note):
        self.assignment = assignment
        self.pids = {}
        self.codes = {}  # local rank -> (exit code or -1, signal or 0)
        self._options = options
        self._note = note

    def start(self):
        """Start all of them. Raises OSError if one cannot be started; those before it run and are in `pids`.

        In a forked child, BecomeWorker is raised.
        """
        reason = why_not_fork()
        if reason is not None:
            self._note("workers are executed afresh (slower): %s" % reason)
        for local_rank in range(self.assignment.nproc):
            environment = self.assignment.environment(local_rank, self._options)
            pid = _fork(environment) if reason is None else _execute(environment, self._options)
            self.pids[pid] = local_rank

    def ended(self, pid, status):
        """A child was reaped. Its (local rank, code, signal), or None for a process that was not a worker."""
        local_rank = self.pids.pop(pid, None)
        if local_rank is None:
            return None
        code, number = (-1, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), 0)
        self.codes[local_rank] = (code, number)
        _kill_group(pid, signal.SIGKILL)  # what the worker left behind: data loaders
        return local_rank, code, number

    def signal(self, number):
        for pid in self.pids:
            _kill_group(pid, number)


def _kill_group(pid, number):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _bind_to_parent(parent):
    """Die with the launcher, whatever kills it."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _fork(environment):
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # both sides do it, whoever comes first
            os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        _bind_to_parent(parent)
        _reseed()
        os.environ.update(environment)
    except BaseException:  # it must not come back to the launcher's loop
        traceback.print_exc()
        os._exit(1)
    raise BecomeWorker


def _reseed():
    """What a fresh process would start with: nothing is shared between ranks or attempts by being forked."""
    random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(TORCH_SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _execute(environment, options):
    job = json.dumps({"module": options.module, "script": options.script, "args": options.args, "parent": os.getpid()})
    env = dict(os.environ, **environment, PITCREW_WORKER=job)
    argv = [sys.executable, "-u", "-m", "pitcrew_torch.worker"]
    return os.posix_spawn(sys.executable, argv, env, setpgroup=0, setsigmask=[])
