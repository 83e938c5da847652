"""What this host has: GPU, driver, torch, DCGM, the agent's binary. And what it lacks, with the remedy."""

import json
import os
import platform
import subprocess
import sys
import time

from . import agent, figures, nodeview, nvml, smi

PROBE = """
import json, sys
try:
    import torch
except ImportError as error:
    print(json.dumps({"torch": None, "why": str(error)})); sys.exit()
found = {"torch": torch.__version__, "cuda_build": torch.version.cuda, "cuda": torch.cuda.is_available(), "gpus": []}
if found["cuda"]:
    for n in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(n)
        found["gpus"].append({"name": about.name, "bytes": about.total_memory})
    torch.zeros(1, device="cuda").item()
found["nccl"] = torch.distributed.is_available() and torch.distributed.is_nccl_available()
if found["cuda"] and found["nccl"]:
    found["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(found))
"""
PROBE_LIMIT = 60.0
GPUS = "/proc/driver/nvidia/gpus"


def probe(python=sys.executable, limit=PROBE_LIMIT):
    """What torch says, asked in a process of its own: a driver that hangs must not hang the check."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=limit)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"torch": None, "why": "torch and a first CUDA call did not answer within %g s" % limit}
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"torch": None, "why": "the probe of torch ended with %s: %s" % (done.returncode, last)}


def nvidia_smi():
    try:
        return smi.gpus(), ""
    except figures.Missing as missing:
        return [], str(missing)
    except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        return [], "nvidia-smi does not answer: %s" % error


def facts(root):
    """Everything that the results' head says, with `missing`: a list of what is not here, each with its remedy."""
    torch, (gpus, no_smi) = probe(), nvidia_smi()
    missing = []

    def needs(ok, text):
        if not ok:
            missing.append(text)
        return ok

    if needs(torch["torch"], "torch: %s. Run the check with a Python that has torch: GPU_PYTHON=…" % torch.get("why")):
        needs(
            torch["cuda"],
            "a GPU that torch can use: torch %s (CUDA %s) sees none"
            % (torch["torch"], torch["cuda_build"] or "absent"),
        )
        needs(torch.get("nccl"), "NCCL: this torch is built without it")
    needs(not no_smi, no_smi)
    try:
        nvml.load()
    except figures.Missing as error:
        missing.append(str(error))
    needs(os.path.isdir(GPUS), GPUS + ": the kernel has no NVIDIA driver loaded, or hides it")
    needs(os.access("/dev/kmsg", os.R_OK), "/dev/kmsg: it cannot be read by this user: run as root")
    library = nodeview.find_dcgm()
    needs(library, nodeview.NO_DCGM)
    try:
        agent.binary(root)
    except figures.Missing as error:
        missing.append(str(error))
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gpu": [row["name"] for row in gpus] or [g["name"] for g in torch.get("gpus") or []],
        "driver": gpus[0]["driver_version"] if gpus else None,
        "torch": torch["torch"],
        "cuda_of_torch": torch.get("cuda_build"),
        "nccl": torch.get("nccl_version"),
        "usable": bool(torch.get("cuda")),
        "libdcgm": library,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "missing": missing,
    }
