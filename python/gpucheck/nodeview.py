"""What the agent and NVML say of the GPUs and their processes, against nvidia-smi.

The agent has two sources of its own: /proc for the processes on a GPU, and DCGM for everything else. It does not read
NVML, except for the UUIDs of MIG devices. So ECC mode, throttle reasons and MIG mode come through the agent only if
libdcgm is found; NVML is read here by ctypes beside it.
"""

import contextlib
import ctypes.util
import errno
import glob
import json
import os
import subprocess
import sys
import time

from . import agent, figures, nvml, simulated, smi
from .figures import Missing, wait_until

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"  # one of the first fields that arrive
IDLE_BITS = 0x1 | 0x2  # idle, and clocks set by an application: they change between two readings
HOLDER = """
import sys, torch
held = torch.zeros(1 << 20, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""


class Holder:
    """A process of our own that has the GPU open, so that the lists of processes are not empty."""

    def __init__(self, context):
        self.pid, self._process = simulated.PID, None
        if not context.simulated:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=pipe, stdout=pipe)
            self.pid = self._process.pid
            if not self._process.stdout.readline():
                raise RuntimeError("the process that was to hold the GPU ended with %s" % self._process.wait())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(10)


def smi_path(context):
    return simulated.smi(context.work) if context.simulated else smi.find()


def compared(report, what, expected, got):
    """A check of two values, or a note if one side has none."""
    if expected is None or got is None:
        report.note("%s: not compared, nvidia-smi says %s, the other %s" % (what, expected, got))
    else:
        report.check(what, expected, got)


def compared_throttle(report, what, first, got, second):
    """The bits that both readings of nvidia-smi around it agree on must be in it, except those of an idle card."""
    if first is None or got is None or second is None:
        report.note("%s: not compared, nvidia-smi says %s, the other %s" % (what, first, got))
        return
    steady = ~(first ^ second) & ~IDLE_BITS
    report.check(what, hex(first & steady), hex(got & steady))


def compared_processes(report, what, listed, own, got):
    """nvidia-smi in a container may list pids of another namespace, or none: that is reported and not compared."""
    if own not in listed:
        report.note("%s: not compared, nvidia-smi does not list our own process %d (it lists %s)" % (what, own, listed))
        report.check(what + " has our own process", own, own if own in (got or ()) else got)
        return
    report.check(what + ": all that nvidia-smi lists", sorted(listed), sorted(set(got or ()) & set(listed)))
    more = sorted(set(got or ()) - set(listed))
    if more:  # such as nvidia-persistenced, which has the device open and computes nothing
        report.note("%s: also %s, which nvidia-smi does not list as computing" % (what, more))


def nvml_direct(context, report):
    path = smi_path(context)
    library = simulated.Library() if context.simulated else nvml.load()
    with Holder(context) as holder:
        taken = []
        for _ in range(context.size(20, 3)):
            began = time.perf_counter()
            found = nvml.read(library)
            taken.append((time.perf_counter() - began) * 1e3)
        report.figure("NVML: init, and all values of all GPUs", "ms", taken)
        first, running = smi.gpus(path), smi.processes(path)
        found = nvml.read(library)
        second = {row["uuid"]: row for row in smi.gpus(path)}
        for row in first:
            uuid = row["uuid"]
            mine = found.get(uuid)
            report.check("NVML has %s" % uuid, True, mine is not None)
            if mine is None:
                continue
            compared(report, "ECC mode", row["ecc.mode.current"], mine["ecc"])
            compared(report, "MIG mode", row["mig.mode.current"], mine["mig"])
            report.fact("MIG capable", mine["mig"] is not None)
            after = second.get(uuid, row)[smi.REASONS]
            compared_throttle(report, "throttle reasons", row[smi.REASONS], mine["throttle"], after)
            listed = [p["pid"] for p in running if p["gpu_uuid"] == uuid]
            if holder.pid in listed or holder.pid in (mine["processes"] or ()):
                compared_processes(report, "compute processes", listed, holder.pid, mine["processes"])


def agent_processes(context, report):
    path = smi_path(context)
    proc = simulated.proc(context.work) if context.simulated else None
    if proc is None and not os.path.isdir("/proc/driver/nvidia/gpus"):
        raise Missing("/proc/driver/nvidia/gpus is missing: without it the agent lists no process")
    with agent.Agent(context, proc=proc) as node:
        began = time.monotonic()
        with Holder(context) as holder:
            named = lambda: holder.pid in node.processes()  # noqa: E731
            wait_until(named, context.patience, "the agent to name process %d" % holder.pid, 0.05)
            report.figure("process with the GPU open until the agent names it", "s", [time.monotonic() - began])
            running = smi.processes(path)
            seen = node.processes()
            uuids = {p["gpu_uuid"] for p in running if p["pid"] == holder.pid}
            listed = [p["pid"] for p in running]
            compared_processes(report, "processes through the agent", listed, holder.pid, list(seen))
            if uuids:
                report.check("the GPU of our own process", sorted(uuids), [seen.get(holder.pid)])


DCGM_PLACES = ("/usr/lib/*/libdcgm.so.4", "/usr/lib64/libdcgm.so.4", "/usr/local/lib*/libdcgm.so.4")


def find_dcgm():
    """Path of libdcgm.so.4, or None."""
    named = os.environ.get("PITCREW_DCGM_LIBRARY")
    found = [path for place in ([named] if named else DCGM_PLACES) for path in sorted(glob.glob(place))]
    return found[0] if found else ctypes.util.find_library("dcgm")


NO_DCGM = (
    "libdcgm.so.4 is not found: the agent reads ECC mode, throttle reasons and MIG mode only through DCGM. Install "
    "DCGM 4 (datacenter-gpu-manager-4-core), or set PITCREW_DCGM_LIBRARY"
)


MODES = {
    "DCGM_FI_DEV_ECC_CURRENT": ("ECC mode", "ecc.mode.current"),
    "DCGM_FI_DEV_MIG_MODE": ("MIG mode", "mig.mode.current"),
}


def dcgm(context, report):
    path, env = smi_path(context), {"PITCREW_DCGM_MAX_INTERVAL": "2s"}
    if context.simulated:
        library = os.path.join(context.root, "bin", "libdcgm.so.4")
        if not os.path.exists(library):
            raise Missing("bin/libdcgm.so.4, the stub, is missing: run make build")
        env["PITCREW_DCGM_SCRIPT"] = simulated.dcgm_script(context.work)
    else:
        library = find_dcgm()
        if library is None:
            raise Missing(NO_DCGM)
    with agent.Agent(context) as node:
        began = time.monotonic()
        health = node.start_dcgm(library, **env)
        try:
            wait_until(lambda: agent.series(node.scrape(), TEMPERATURE), context.patience, "DCGM's first sample", 0.05)
        except TimeoutError as error:
            raise RuntimeError("%s; %s; %s" % (error, agent.get(health)[-300:], node.log("dcgm")[-600:])) from None
        report.figure("DCGM process, start until its first sample on the endpoint", "s", [time.monotonic() - began])
        with contextlib.suppress(TimeoutError):  # a card without MIG has no value for it
            wait_until(lambda: all(agent.series(node.scrape(), name) for name in MODES), 10, "DCGM's modes", every=0.05)
        first = smi.gpus(path)
        time.sleep(2.5)  # a round of every field, and the endpoint's second
        text = node.scrape()
        second = {row["uuid"]: row for row in smi.gpus(path)}
        for row in first:
            compare_dcgm(report, text, row, second.get(row["uuid"], row))


def compare_dcgm(report, text, row, after):
    def value(name):
        for labels, found in agent.series(text, name):
            if labels.get("UUID") == row["uuid"] and "GPU_I_ID" not in labels:
                return found
        return None

    report.check("DCGM has %s" % row["uuid"], True, value(TEMPERATURE) is not None)
    for name, (what, cell) in MODES.items():
        got = value(name)
        compared(report, what + " through DCGM", row[cell], None if got is None else bool(got))
    bits = value("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
    got = None if bits is None else int(bits)
    compared_throttle(report, "throttle reasons through DCGM", row[smi.REASONS], got, after[smi.REASONS])


def kmsg(context, report):
    """Whether this process may read the kernel log, and whether the agent can."""
    lines, about = 0, 0
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        report.fact("/dev/kmsg", "cannot be opened: %s" % errno.errorcode.get(error.errno, error))
    else:
        why = ""
        while lines < 100_000:
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten while we read: the next one is there
            except OSError as error:
                why = "cannot be read: %s" % errno.errorcode.get(error.errno, error)
                break
            if not record:
                break
            lines += 1
            about += b"NVRM" in record
        os.close(fd)
        report.fact("/dev/kmsg", why or "readable")
        report.fact("records in it, and of the NVIDIA driver", [lines, about])
    with agent.Agent(context, kmsg="/dev/kmsg") as node:
        found = wait_until(
            lambda: verdict(agent.get(node.health)), context.patience / 4, "the agent's word on the kernel log", 0.1
        )
    report.fact("the agent's receiver of the kernel log", found)


def verdict(health):
    """The xid receiver's status in health_check's answer."""
    try:
        components = json.loads(health)["components"]["pipeline:logs"]["components"]
    except (ValueError, KeyError, TypeError):
        return None
    about = components.get("receiver:xid", {})
    return about.get("error") or about.get("status")


__all__ = ["agent_processes", "dcgm", "figures", "kmsg", "nvml_direct"]
