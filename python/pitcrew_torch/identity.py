"""Who this process is: its rank among others, the GPU it was given, and the run and attempt it belongs to.

No torch here.
"""

import dataclasses
import os
import socket
import time
import warnings

GPU_VARIABLES = ("PITCREW_GPU_UUID", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")

# Where a rank may come from besides torch.distributed, best first: (rank, world size, local rank). torchrun inside srun
# sets RANK, and SLURM's numbers count nodes then, so a later row speaks only where no earlier one does.
SOURCES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


def number(environ, *names, default=0):
    """The first of these variables that holds a whole number."""
    for name in names:
        try:
            return int(environ[name])
        except (KeyError, ValueError):
            continue
    return default


@dataclasses.dataclass
class Place:
    """A rank's place. problem: why it cannot be trusted, with the remedy, or ""."""

    rank: int
    local_rank: int
    world_size: int
    problem: str = ""


def place(environ, distributed=None):
    """This process's place. distributed: (rank, world size) by torch.distributed where that is initialized."""
    named = next((s for s in SOURCES if number(environ, s[0], default=-1) >= 0 and number(environ, s[1]) > 0), None)
    told = None if named is None else (number(environ, named[0]), number(environ, named[1]))
    if told is None and "RANK" in environ:
        told = (number(environ, "RANK"), number(environ, "WORLD_SIZE", default=1))
        named = SOURCES[0]
    rank, world = distributed or told or (0, number(environ, "WORLD_SIZE", default=1))
    problem = ""
    if distributed is not None:
        problem = disagreement(environ, distributed)
    elif not 0 <= rank < max(1, world):
        problem = "rank %d of %d ranks is impossible: check %s and %s" % (rank, world, *named[:2])
    elif told is None and world > 1:
        problem = (
            "WORLD_SIZE is %d and nothing names this process's rank: call attach() after init_process_group, or set "
            "RANK" % world
        )
    local = number(environ, *([named[2]] if named else []), "LOCAL_RANK", default=rank)
    return Place(rank, local, world, problem)


def disagreement(environ, distributed):
    """How RANK and WORLD_SIZE contradict torch.distributed, with the remedy, or ""."""
    for name, value in zip(SOURCES[0], distributed):
        if name in environ and number(environ, name, default=value) != value:
            return "%s is %s and torch.distributed says %d: unset %s in this process, or set it to %d" % (
                name, environ[name], value, name, value,
            )  # fmt: skip
    return ""


def workload_of(environ, given):
    """What the user calls the work, or "". One that is too long is not told: cut short it could be another's."""
    text = environ.get("PITCREW_WORKLOAD", "") if given is None else str(given)
    if len(text.encode("utf-8", "replace")) < 128:
        return text
    warnings.warn("pitcrew: a workload of over 127 bytes is not told: %.40s..." % text, RuntimeWarning, stacklevel=2)
    return ""


def gpu_uuid(environ, local_rank):
    """The UUID of the local rank's GPU, or "". Asking the driver would open the device; that is the user's to do."""
    for name in GPU_VARIABLES:
        uuids = [value.strip() for value in environ.get(name, "").split(",")]
        if all(uuid.startswith(("GPU-", "MIG-")) for uuid in uuids) and local_rank < len(uuids):
            return uuids[local_rank]
    return ""


ATTEMPT = ("PITCREW_ATTEMPT", "TORCHELASTIC_RESTART_COUNT")
NO_RUN = ("", "none", "default")  # what launchers call a run that nobody named
LOOPBACK = ("", "localhost", "::1")


class Run:
    """The run that this process trains for: which job, which launcher started it and when, which attempt it is.

    A launcher (torchrun, ours, srun, a shell) is known by its host, process and start time: its restarts of a worker
    are one run, a launcher that was started again is another run of the same job."""

    def __init__(self, environ):
        self.attempt = number(environ, *ATTEMPT)
        self.attempt_known = any(name in environ for name in ATTEMPT)
        self.managed = environ.get("PITCREW_ATTEMPT_BY") == "agent"
        self.job = environ.get("PITCREW_JOB_UID", "")
        run_id = environ.get("TORCHELASTIC_RUN_ID", "")
        if run_id in NO_RUN and environ.get("SLURM_JOB_ID"):
            run_id = "slurm-" + environ["SLURM_JOB_ID"]
        self.run_id = "" if run_id in NO_RUN else run_id
        address = environ.get("MASTER_ADDR", "")
        alone = address in LOOPBACK or address.startswith("127.")
        self.master = "" if alone else "%s:%s" % (address, environ.get("MASTER_PORT", ""))
        self.host = socket.gethostname()
        self.space = _space()
        self.pid, self.pid_started = os.getpid(), started(os.getpid())
        self.launcher = os.getppid() if self.attempt_known else self.pid  # a shell's children are runs of their own
        self.started = _launched(self.launcher) or _launched(self.pid) or time.time()

    def record(self, **more):
        """The claim's fields."""
        return dict(
            {
                "v": 1, "epoch": None, "attempt": self.attempt, "attempt_known": self.attempt_known,
                "managed": self.managed, "run_id": self.run_id, "job": self.job, "master": self.master,
                "started": round(self.started, 2), "launcher": self.launcher, "host": self.host, "space": self.space,
                "pid": self.pid, "pid_started": self.pid_started,
            },
            **more,
        )  # fmt: skip

    def is_process(self, claim):
        """Whether this very process made the claim, for this attempt."""
        names = ("host", "space", "pid", "pid_started", "attempt", "job", "run_id")
        return all(claim.get(name) == getattr(self, name) for name in names)

    def is_instance(self, claim):
        """Whether the claim was made by a worker of the same launcher."""
        names = ("host", "space", "launcher", "job", "run_id")
        return (
            all(claim.get(name) == getattr(self, name) for name in names)
            and abs(claim.get("started", 0) - self.started) < 1.0
        )

    def same_job(self, claim):
        """Whether the claim is of the same job, by whatever names it: the job's UID, the run's id, the master's
        name."""
        return any(
            getattr(self, name) and getattr(self, name) == claim.get(name) for name in ("job", "run_id", "master")
        )

    def another_job(self, claim):
        """Whether both name their job or run, and name different ones."""
        named = any(getattr(self, name) and claim.get(name) for name in ("job", "run_id"))
        return named and not self.same_job(claim)

    def knows_dead(self, claim):
        """Whether the claim's process ran here, where processes can be seen, and is gone."""
        here = claim.get("host") == self.host and claim.get("space") == self.space and self.space
        return bool(here) and started(claim.get("pid", 0)) != claim.get("pid_started")


def _space():
    """This boot and PID namespace: process numbers mean the same within it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return "%s/%s" % (f.read().strip(), os.readlink("/proc/self/ns/pid"))
    except OSError:
        return ""


def started(pid):
    """When a process started, in clock ticks since the boot; 0 for one that is not there."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as f:
            return int(f.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _launched(pid):
    """The same in Unix seconds, 0.0 where unknown."""
    ticks = started(pid)
    if not ticks:
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
