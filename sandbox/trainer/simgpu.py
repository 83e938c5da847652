"""SIMULATION of one rank's GPU: a file whose first byte says what a call to it does, and whose rest (JSON, may be
missing) says how fast it works. For the sandbox only."""

import json
import os
import time

SIZE = 256


class SimulatedGPU:
    """spec: a comma-separated list of files or a directory, one file per local rank; empty: a GPU that always works."""

    def __init__(self, spec, local_rank):
        self._fd = None
        self._raw = None
        self._values = {}
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

    def _pace(self):
        raw = os.pread(self._fd, SIZE, 1) if self._fd is not None else b""
        if raw != self._raw:
            self._raw = raw
            try:
                self._values = json.loads(raw)
            except ValueError:
                self._values = {}
        return self._values

    def slowdown(self):
        """By what factor its work takes longer now."""
        pace = self._pace()
        factor = pace.get("slow", 1.0) + pace.get("per_s", 0.0) * max(0.0, time.time() - pace.get("since", 0.0))
        return min(factor, pace.get("limit", factor))

    def launch(self):
        """Wait as work waits that was issued and has not begun. Gives the nanoseconds by the device's simulated clock,
        which knows nothing of what else this machine's processors do."""
        pace = self._pace()
        wait = pace.get("launch_s", 0.0) if time.time() < pace.get("until", float("inf")) else 0.0
        if wait:
            time.sleep(wait)
        return int(wait * 1e9) + 200_000


class LaunchRecorder:
    """Writes the simulated launch latency into each step's record, where a real device's events would say it."""

    busy = True

    def __init__(self, ring):
        self.nanoseconds = 0
        self._ring = ring
        ring.settle(ring.sequence)

    def measures(self):
        return False

    def begin(self):
        pass

    def remember(self, now):
        pass

    def step(self, sequence, now):
        self._ring.amend(sequence, launch=self.nanoseconds)
        self._ring.settle(sequence)
