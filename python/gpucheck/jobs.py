"""Starts job.py as the measurements need it, and reads what it wrote."""

import contextlib
import json
import os
import subprocess
import sys
import time


def environment(context, **settings):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PITCREW_", "PET_", "JOB_"))}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        env.pop(name, None)
    env.update(JOB_DEVICE=context.device, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    env.update({k: str(v) for k, v in settings.items()})
    os.makedirs(env["JOB_LOG"], exist_ok=True)
    return env


def start(argv, env):
    env["JOB_SPAWNED"] = repr(time.monotonic())
    return subprocess.Popen([sys.executable, *argv], env=env, stdin=subprocess.DEVNULL)


def alone(env):
    return start(["-m", "gpucheck.job"], env)


def launched(env, ranks, restarts):
    """Under Pitcrew's launcher."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "job.py")
    flags = ["--nproc-per-node=%d" % ranks, "--standalone", "--max-restarts=%d" % restarts]
    return start(["-m", "pitcrew_torch.run", *flags, script], env)


def lines(log, rank, kind, **fields):
    """A rank's lines of this kind with these fields, oldest first."""
    found = []
    with contextlib.suppress(FileNotFoundError), open(os.path.join(log, "%d.log" % rank), encoding="utf-8") as f:
        for text in f:
            with contextlib.suppress(ValueError):
                line = json.loads(text)
                if line["t"] == kind and all(line.get(k) == v for k, v in fields.items()):
                    found.append(line)
    return found


def ended_well(process, limit, what):
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        raise TimeoutError("%s did not end within %g s" % (what, limit)) from None
    if code:
        raise RuntimeError("%s ended with %d" % (what, code))
