"""Who this process is, by its environment: what torchrun and the launcher set, and which GPU it was given.

No torch here.
"""

import warnings

GPU_VARIABLES = ("PITCREW_GPU_UUID", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def number(environ, *names, default=0):
    """The first of these variables that holds a whole number."""
    for name in names:
        try:
            return int(environ[name])
        except (KeyError, ValueError):
            continue
    return default


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
