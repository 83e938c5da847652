"""SIMULATION of one rank's GPU: a file whose first byte says what a call to it does. For the sandbox only."""

import os
import time


class SimulatedGPU:
    """spec: a comma-separated list of files or a directory, one file per local rank; empty: a GPU that always works."""

    def __init__(self, spec, local_rank):
        self._fd = None
        if os.path.isdir(spec):
            files = [os.path.join(spec, name) for name in sorted(os.listdir(spec))]
        else:
            files = [name for name in spec.split(",") if name]
        if files:
            if local_rank >= len(files):
                raise RuntimeError("PITCREW_SIM_GPU=%s has no file for local rank %d" % (spec, local_rank))
            self._fd = os.open(files[local_rank], os.O_RDONLY | os.O_CLOEXEC)

    def touch(self):
        """One call to the GPU."""
        state = os.pread(self._fd, 1, 0) if self._fd is not None else b"o"
        if state == b"e":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        while state == b"b":  # for ever: a lost GPU does not come back to the call that waits for it
            time.sleep(3600)
