"""Who this process is, by its environment: what torchrun and the launcher set, and which GPU it was given.

No torch here.
"""

GPU_VARIABLES = ("PITCREW_GPU_UUID", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def number(environ, *names, default=0):
    """The first of these variables that holds a whole number."""
    for name in names:
        try:
            return int(environ[name])
        except (KeyError, ValueError):
            continue
    return default


def gpu_uuid(environ, local_rank):
    """The UUID of the local rank's GPU, or "". Asking the driver would open the device; that is the user's to do."""
    for name in GPU_VARIABLES:
        uuids = [value.strip() for value in environ.get(name, "").split(",")]
        if all(uuid.startswith(("GPU-", "MIG-")) for uuid in uuids) and local_rank < len(uuids):
            return uuids[local_rank]
    return ""
