"""The command line of `python -m pitcrew_torch.run`: torchrun's common flags, its spelling, its PET_* defaults.

No torch here.
"""

import argparse
import contextlib
import dataclasses
import math
import os
import random
import signal
import socket
from typing import List, Optional, Tuple

from .signals import ENDING

MAX_SECONDS = 1_000_000

# Accepted because scripts pass them, without effect here: what the launcher does instead.
WITHOUT_EFFECT = {
    "monitor_interval": "a worker's end is seen at once",
    "rdzv_conf": "there is no rendezvous to configure",
    "start_method": "workers are forked, or executed afresh where forking is not safe",
    "role": "only a name in torchrun's logs",
    "log_dir": "workers write to the launcher's own output",
    "redirects": "workers write to the launcher's own output",
    "tee": "workers write to the launcher's own output",
    "local_addr": "the master's address is MASTER_ADDR as given",
    "local_ranks_filter": "workers write to the launcher's own output",
    "logs_specs": "workers write to the launcher's own output",
    "log_line_prefix_template": "workers write to the launcher's own output",
    "duplicate_stdout_filters": "workers write to the launcher's own output",
    "duplicate_stderr_filters": "workers write to the launcher's own output",
    "event_log_handler": "events go to the node agent",
    "numa_binding": "workers are not bound to CPUs; use numactl or the kubelet's topology manager",
}
# Refused because the script would get something else than it asked for: what to do.
REFUSED = {
    "no_python": "workers are forked from this process. Use torchrun for other programs",
    "virtual_local_rank": "workers of one node share CUDA_VISIBLE_DEVICES. Use LOCAL_RANK as the device's index",
}
PREFIX = "PET_"  # torchrun reads the default of --some-flag from PET_SOME_FLAG
NODE_RANK_VARIABLES = ("JOB_COMPLETION_INDEX", "GROUP_RANK", "SLURM_NODEID")


@dataclasses.dataclass
class Options:
    """What the launcher was asked to run. node_rank is None where neither flag nor environment tells it."""

    nproc: int
    nnodes: int
    node_rank: Optional[int]
    master_addr: str
    master_port: int
    max_restarts: int
    run_id: str
    module: bool
    script: str
    args: List[str]
    preload: Tuple[str, ...] = ()
    directory: Optional[str] = None
    job_uid: str = ""
    agent_wait: float = 2.0
    heal_wait: float = 120.0
    term_grace: float = 3.0
    plan_wait: float = 3600.0
    signals: Tuple[str, ...] = ENDING


def _both(name):
    """--nproc-per-node and --nproc_per_node."""
    return sorted({"--" + name, "--" + name.replace("-", "_")})


def parser(environ):
    def default(name, otherwise=None):
        return environ.get(PREFIX + name.upper()) or otherwise  # an empty variable is an unset one

    p = argparse.ArgumentParser(
        prog="python -m pitcrew_torch.run",
        description="Runs the workers of one node of a PyTorch job, as torchrun does, and starts them again in about a "
        "second when Pitcrew's node agent says so. Every flag's default can be set as PET_<NAME>, as with torchrun.",
    )

    def add(*names, **how):
        dest = how.setdefault("dest", names[-1].lstrip("-").replace("-", "_"))
        p.add_argument(*names, **dict(how, default=default(dest, how.get("default"))))

    def flag(*names, **how):
        """PET_<NAME>=0 is not set, as torchrun reads it."""
        dest = names[-1].lstrip("-").replace("-", "_")
        p.add_argument(*names, action="store_true", dest=dest, default=default(dest, "0") != "0", **how)

    add(*_both("nnodes"), default="1", help="number of nodes (N or N:N)")
    add(*_both("nproc-per-node"), default="1", help="a number, auto, cpu or gpu")
    add(*_both("node-rank"), help="or PET_NODE_RANK, " + ", ".join(NODE_RANK_VARIABLES))
    add(*_both("master-addr"), help="address of node rank 0")
    add(*_both("master-port"), help="port for rank 0's store (29500)")
    add(*_both("rdzv-backend"), default="static", help="static or c10d")
    add(*_both("rdzv-endpoint"), default="", help="host[:port] of node rank 0")
    add(*_both("rdzv-id"), default="none", help="given to workers as the run's id")
    flag("--standalone", help="one node, a free port")
    add(*_both("max-restarts"), default="0", help="how often a failed attempt is started again without an agent")
    add(*_both("shutdown-timeout"), help="seconds from SIGTERM to SIGKILL; or PITCREW_TERM_GRACE (3)")
    add(*_both("signals-to-handle"), default=",".join(ENDING), help="signals that are forwarded and end the job")
    p.add_argument("--preload", action="append", default=[], help="module to import before forking; may be repeated")
    flag("-m", "--module", help="run the script as python -m does")
    flag(*_both("run-path"), help=argparse.SUPPRESS)
    for name in REFUSED:
        flag(*_both(name.replace("_", "-")), help=argparse.SUPPRESS)
    for name, instead in WITHOUT_EFFECT.items():
        short = {"redirects": ["-r"], "tee": ["-t"]}.get(name, [])
        add(*short, *_both(name.replace("_", "-")), help="accepted; " + instead)
    p.add_argument("script", help="the training script, or a module with -m")
    p.add_argument("args", nargs=argparse.REMAINDER)
    return p


def parse(argv, environ=None, note=lambda text: None):
    """argv as Options. Ends the process with argparse's message on a bad one, as torchrun does."""
    environ = os.environ if environ is None else environ
    p = parser(environ)
    given = p.parse_args(argv)
    for name, why in REFUSED.items():
        if getattr(given, name):
            p.error("%s cannot work here: %s" % (_spelled(name, argv), why))
    for name, instead in WITHOUT_EFFECT.items():
        if getattr(given, name) is not None:
            note("%s has no effect: %s" % (_spelled(name, argv), instead))
    for name in sorted(environ):
        if name.startswith(PREFIX) and not hasattr(given, name[len(PREFIX) :].lower()):
            note("%s has no effect: there is no such flag here" % name)
    if given.rdzv_backend not in ("static", "c10d"):
        p.error("--rdzv-backend %s is not supported; the node agent tells workers their master" % given.rdzv_backend)
    if not given.max_restarts.isdigit():
        p.error("--max-restarts %s is not a number of restarts" % given.max_restarts)
    nnodes = _nodes(p, given)
    addr, port = _master(p, given, nnodes)
    return Options(
        nproc=_workers(p, given.nproc_per_node, environ),
        nnodes=nnodes,
        node_rank=_node_rank(p, given, nnodes, environ),
        master_addr=addr,
        master_port=port,
        max_restarts=int(given.max_restarts),
        run_id=given.rdzv_id,
        module=given.module,
        script=given.script,
        args=given.args,
        preload=tuple(name for value in given.preload for name in value.split(",") if name),
        directory=environ.get("PITCREW_DIR") or None,
        job_uid=environ.get("PITCREW_JOB_UID", ""),
        agent_wait=_seconds(p, environ, "PITCREW_AGENT_WAIT", 2.0),
        heal_wait=_seconds(p, environ, "PITCREW_HEAL_WAIT", 120.0),
        plan_wait=_seconds(p, environ, "PITCREW_PLAN_WAIT", 3600.0),
        term_grace=_grace(p, given, environ),
        signals=_signals(p, given.signals_to_handle),
    )


def _spelled(name, argv):
    """The flag as a person would look for it: on the command line, else in the environment."""
    flags = _both(name.replace("_", "-")) + {"redirects": ["-r"], "tee": ["-t"]}.get(name, [])
    on_line = any(word.split("=")[0] in flags for word in argv)
    return "--" + name.replace("_", "-") if on_line else PREFIX + name.upper()


def _seconds(p, environ, name, otherwise):
    text = environ.get(name, "")
    try:
        value = float(text or otherwise)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_SECONDS:
        p.error("%s=%s is not a number of seconds from 0 to %d" % (name, text, MAX_SECONDS))
    return value


def _grace(p, given, environ):
    if given.shutdown_timeout is None:
        return _seconds(p, environ, "PITCREW_TERM_GRACE", 3.0)
    return _seconds(p, {"--shutdown-timeout": given.shutdown_timeout}, "--shutdown-timeout", 3.0)


def _signals(p, text):
    names = tuple(name.strip().upper() for name in text.split(",") if name.strip())
    for name in names:
        if name in ("SIGKILL", "SIGSTOP", "SIGCHLD") or not isinstance(getattr(signal, name, None), signal.Signals):
            p.error("--signals-to-handle: %s is not a signal that can be handled" % name)
    return names


def _nodes(p, given):
    low, _, high = str(given.nnodes).partition(":")
    if high and high != low:
        p.error(
            "--nnodes %s: an elastic range is not supported, a gang has a fixed size; give one number" % given.nnodes
        )
    if not low.isdigit() or int(low) < 1:
        p.error("--nnodes %s is not a number of nodes" % given.nnodes)
    if given.standalone and int(low) != 1:
        p.error("--standalone is for one node, not --nnodes %s" % low)
    return int(low)


def _workers(p, value, environ):
    if str(value).isdigit() and int(value) > 0:
        return int(value)
    if value not in ("auto", "cpu", "gpu"):
        p.error("--nproc-per-node %s is neither a number nor auto, cpu or gpu" % value)
    gpus = _gpus(environ)
    if value == "gpu" and not gpus:
        p.error("--nproc-per-node gpu: no GPU (no /dev/nvidia<N>, or CUDA_VISIBLE_DEVICES hides them)")
    return gpus if value != "cpu" and gpus else os.cpu_count() or 1


def _gpus(environ, devices="/dev"):
    """How many GPUs a worker sees. Asking CUDA would open the devices in the process that is to be forked."""
    present = sum(name[len("nvidia") :].isdigit() for name in os.listdir(devices) if name.startswith("nvidia"))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    names = [name.strip() for name in visible.split(",")]
    if all(name.startswith(("GPU-", "MIG-")) for name in names):
        return len(set(names)) if present else 0
    count = 0
    for name in names:  # CUDA ignores everything after the first device that does not exist
        if not name.isdigit() or int(name) >= present:
            break
        count += 1
    return count


def _node_rank(p, given, nnodes, environ):
    if nnodes == 1:
        return 0
    named = [("--node-rank", given.node_rank)] + [(name, environ.get(name)) for name in NODE_RANK_VARIABLES]
    for name, value in named:
        if value not in (None, ""):
            if not str(value).isdigit() or int(value) >= nnodes:
                p.error("node rank %s (from %s) does not fit --nnodes %d" % (value, name, nnodes))
            return int(value)
    return None


def _master(p, given, nnodes):
    if given.standalone:
        return "127.0.0.1", free_port()
    host, _, port = given.rdzv_endpoint.rpartition(":") if ":" in given.rdzv_endpoint else (given.rdzv_endpoint, "", "")
    addr, port = given.master_addr or host.strip("[]") or "127.0.0.1", given.master_port or port or "29500"
    if not str(port).isdigit():
        p.error("master port %r is not a number" % (port,))
    if nnodes == 1 and int(port) == 0:
        port = free_port()
    return addr, int(port)


def free_port():
    """One that nobody listens on, below those that Linux gives to connections: torch is imported before it is used."""
    draw = random.SystemRandom()
    for _ in range(100):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("", draw.randrange(20000, 30000)))
            return s.getsockname()[1]
    raise OSError("no free port between 20000 and 30000: pass --master-port")
