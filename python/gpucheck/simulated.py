"""A SIMULATED driver for the dry run: nvidia-smi, NVML and /proc/driver/nvidia of one card that is not there.

It shows that the readers and the comparisons still work, and nothing about a GPU.
"""

import ctypes
import os

UUID = "GPU-51111111-2222-3333-4444-555555555555"
PCI = "00000000:1A:00.0"
THROTTLE = 0x4  # the software power cap
PID = 4242

SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) echo "0, %s, SIMULATED GPU, 0.0, %s, 81559, 1024, Enabled, Disabled, 0x%016x, 41, 70.1" ;;
--query-compute-apps=*) echo "%s, %d, 512" ;;
*) exit 2 ;;
esac
"""


def smi(directory):
    """Writes an nvidia-smi; gives its path."""
    path = os.path.join(directory, "nvidia-smi")
    with open(path, "w", encoding="utf-8") as f:
        f.write(SMI % (UUID, PCI, THROTTLE, UUID, PID))
    os.chmod(path, 0o755)
    return path


class Library:
    """NVML's functions as the C library has them, for nvml.NVML."""

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetUUID(self, handle, text, length):
        ctypes.memmove(text, UUID.encode() + b"\0", len(UUID) + 1)
        return 0

    def nvmlDeviceGetEccMode(self, handle, now, pending):
        now._obj.value = pending._obj.value = 1
        return 0

    def nvmlDeviceGetMigMode(self, handle, now, pending):
        now._obj.value = pending._obj.value = 0
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle, bits):
        bits._obj.value = THROTTLE
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, found):
        count._obj.value, found[0].pid = 1, PID
        return 0


def proc(directory):
    """Writes a /proc with the driver's word on the card and one process that has it open; gives its path."""
    root = os.path.join(directory, "proc")
    gpu = os.path.join(root, "driver", "nvidia", "gpus", "0000:1a:00.0")
    process = os.path.join(root, str(PID))
    for path in (gpu, os.path.join(process, "fd")):
        os.makedirs(path)
    os.symlink("/dev/nvidia0", os.path.join(process, "fd", "7"))
    files = {
        os.path.join(gpu, "information"): "Model: \t\t SIMULATED GPU\nGPU UUID: \t %s\nDevice Minor: \t 0\n" % UUID,
        os.path.join(process, "stat"): "%d (python3) S %s\n" % (PID, " ".join(["0"] * 18 + ["12345"] + ["0"] * 30)),
        os.path.join(process, "cmdline"): "python3\0train.py\0",
        os.path.join(process, "cgroup"): "0::/user.slice\n",
    }
    for path, text in files.items():
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    return root


def dcgm_script(directory):
    """The script of the stub libdcgm for the same card; gives its path."""
    path = os.path.join(directory, "dcgm.script")
    with open(path, "w", encoding="utf-8") as f:
        f.write('gpus 1\ngpu 0 uuid %s pci %s name "SIMULATED GPU"\nfield 0 112 const %d\n' % (UUID, PCI, THROTTLE))
    return path
