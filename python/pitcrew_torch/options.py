"""The command line of `python -m pitcrew_torch.run`: torchrun's common flags, its spelling, its PET_* defaults.

No torch here.
"""

import argparse
import contextlib
import dataclasses
import os
import random
import socket
from typing import List, Optional, Tuple

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
}


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


def _both(name):
    """--nproc-per-node and --nproc_per_node."""
    return sorted({"--" + name, "--" + name.replace("-", "_")})


def parser(environ):
    def default(name, otherwise=None):
        return environ.get("PET_" + name.upper(), otherwise)

    p = argparse.ArgumentParser(
        prog="python -m pitcrew_torch.run",
        allow_abbrev=False,
        description="Runs the workers of one node of a PyTorch job, as torchrun does, and starts them again in about a "
        "second when Pitcrew's node agent says so. Every flag's default can be set as PET_<NAME>, as with torchrun.",
    )
    p.add_argument(*_both("nnodes"), default=default("nnodes", "1"), help="number of nodes (N or N:N)")
    p.add_argument(*_both("nproc-per-node"), default=default("nproc_per_node", "1"), help="a number, auto, cpu or gpu")
    p.add_argument(*_both("node-rank"), default=default("node_rank"), help="or PET_NODE_RANK, JOB_COMPLETION_INDEX")
    p.add_argument(*_both("master-addr"), default=default("master_addr"), help="address of node rank 0")
    p.add_argument(*_both("master-port"), default=default("master_port"), help="port for rank 0's store (29500)")
    p.add_argument(*_both("rdzv-backend"), default=default("rdzv_backend", "static"), help="static or c10d")
    p.add_argument(*_both("rdzv-endpoint"), default=default("rdzv_endpoint", ""), help="host[:port] of node rank 0")
    p.add_argument(*_both("rdzv-id"), default=default("rdzv_id", "none"), help="told to workers as the run's id")
    p.add_argument("--standalone", action="store_true", help="one node, a free port")
    p.add_argument(*_both("max-restarts"), type=int, default=int(default("max_restarts", 0)))
    p.add_argument("--preload", action="append", default=[], help="module to import before forking; may be repeated")
    p.add_argument("-m", "--module", action="store_true", help="run the script as python -m does")
    p.add_argument(*_both("no-python"), action="store_true", dest="no_python", help=argparse.SUPPRESS)
    p.add_argument(*_both("run-path"), action="store_true", dest="run_path", help=argparse.SUPPRESS)
    for name in WITHOUT_EFFECT:
        short = {"redirects": ["-r"], "tee": ["-t"]}.get(name, [])
        p.add_argument(*short, *_both(name.replace("_", "-")), default=None, help="accepted; " + WITHOUT_EFFECT[name])
    p.add_argument("script", help="the training script, or a module with -m")
    p.add_argument("args", nargs=argparse.REMAINDER)
    return p


def parse(argv, environ=None, note=lambda text: None):
    """argv as Options. Ends the process with argparse's message on a bad one, as torchrun does."""
    environ = os.environ if environ is None else environ
    p = parser(environ)
    given = p.parse_args(argv)
    if given.no_python:
        p.error("--no-python cannot work here: workers are forked from this process. Use torchrun for other programs")
    for name, instead in WITHOUT_EFFECT.items():
        if getattr(given, name) is not None:
            note("--%s has no effect: %s" % (name.replace("_", "-"), instead))
    if given.rdzv_backend not in ("static", "c10d"):
        p.error("--rdzv-backend %s is not supported; the node agent tells workers their master" % given.rdzv_backend)
    nnodes = _nodes(p, given)
    addr, port = _master(p, given, nnodes)
    return Options(
        nproc=_workers(p, given.nproc_per_node),
        nnodes=nnodes,
        node_rank=_node_rank(p, given, nnodes, environ),
        master_addr=addr,
        master_port=port,
        max_restarts=given.max_restarts,
        run_id=given.rdzv_id,
        module=given.module,
        script=given.script,
        args=given.args,
        preload=tuple(name for value in given.preload for name in value.split(",") if name),
        directory=environ.get("PITCREW_DIR") or None,
        job_uid=environ.get("PITCREW_JOB_UID", ""),
        agent_wait=float(environ.get("PITCREW_AGENT_WAIT", 2.0)),
        heal_wait=float(environ.get("PITCREW_HEAL_WAIT", 120.0)),
        term_grace=float(environ.get("PITCREW_TERM_GRACE", 3.0)),
    )


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


def _workers(p, value):
    if str(value).isdigit() and int(value) > 0:
        return int(value)
    if value not in ("auto", "cpu", "gpu"):
        p.error("--nproc-per-node %s is neither a number nor auto, cpu or gpu" % value)
    # Counted by their device files: asking CUDA would open the devices in the process that is to be forked.
    gpus = sum(name[len("nvidia") :].isdigit() for name in os.listdir("/dev") if name.startswith("nvidia"))
    if value == "gpu" and not gpus:
        p.error("--nproc-per-node gpu: this machine has no /dev/nvidia<N>")
    return gpus if value != "cpu" and gpus else os.cpu_count() or 1


def _node_rank(p, given, nnodes, environ):
    if nnodes == 1:
        return 0
    for value in (given.node_rank, environ.get("JOB_COMPLETION_INDEX"), environ.get("GROUP_RANK")):
        if value not in (None, ""):
            if not str(value).isdigit() or int(value) >= nnodes:
                p.error("node rank %r does not fit --nnodes %d" % (value, nnodes))
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
