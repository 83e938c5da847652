"""Write the golden files that the Go package `hook` and the Python tests both keep to.

    python3 python/tools/make_golden.py [directory, default hook/testdata]

`ring-v1.bin` is a whole ring, `ring-v1.json` what a reader must find in it, `messages.jsonl` one example of every
message, each with who says it.
"""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "python"))

from pitcrew_torch import ring  # noqa: E402

FILES = [
    {"name": "model.pt", "bytes": 1048576, "crc32": "cbf43926"},
    {"name": "rank-0.state.pt", "bytes": 5120, "crc32": "0000beef"},
]
FILES_1 = [{"name": "rank-1.state.pt", "bytes": 5120, "crc32": "deadbeef"}]
ALL_FILES = [dict(f, rank=0) for f in FILES] + [dict(f, rank=1) for f in FILES_1]
ROUND = {"req": "inc-7/1", "attempt": 3}
DIR = "/ckpt/step-15.attempt-3"
RANK, LAUNCHER, TO_RANK, TO_LAUNCHER = "rank", "launcher", "agent-to-rank", "agent-to-launcher"

MESSAGES = [
    (
        RANK,
        {
            "t": "hello",
            "v": 1,
            "role": "rank",
            "rank": 0,
            "local_rank": 0,
            "world_size": 2,
            "attempt": 3,
            "pid": 77,
            "step": 12,
            "section": "step",
            "can_save": True,
            "strategy": "ddp",
            "ckpt_dir": "/ckpt",
            "save_p99_s": 0.2,
        },
    ),
    (TO_RANK, {"t": "arm", **ROUND, "at_step": 15, "deadline_ms": 8000, "exclude": [1]}),
    (RANK, {"t": "armed", **ROUND, "step": 12, "at_step": 15}),
    (RANK, {"t": "nack", **ROUND, "step": 15, "reason": "past"}),
    (RANK, {"t": "nack", **ROUND, "step": 12, "reason": "attempt"}),
    (RANK, {"t": "nack", **ROUND, "step": 12, "reason": "busy"}),
    (RANK, {"t": "nack", **ROUND, "step": 12, "reason": "cannot-save"}),
    (RANK, {"t": "nack", **ROUND, "step": 12, "reason": "out"}),
    (RANK, {"t": "nack", **ROUND, "step": 12, "reason": "cancelled"}),
    (RANK, {"t": "nack", **ROUND, "step": 12, "reason": "unknown"}),
    (RANK, {"t": "held", **ROUND, "step": 15}),
    (TO_RANK, {"t": "go", **ROUND}),
    (RANK, {"t": "saved", **ROUND, "step": 15, "dir": DIR, "files": FILES, "bytes": 1053696, "seconds": 0.125}),
    (
        RANK,
        {
            "t": "saved",
            **ROUND,
            "step": 15,
            "dir": DIR,
            "files": [],
            "bytes": 0,
            "seconds": 0.01,
            "error": "OSError: [Errno 28] No space left on device",
        },
    ),
    (
        TO_RANK,
        {"t": "manifest", **ROUND, "step": 15, "dir": DIR, "files": ALL_FILES, "world_size": 2, "writers": [0, 1]},
    ),
    (RANK, {"t": "manifested", **ROUND, "step": 15, "dir": DIR, "crc32": "1234abcd"}),
    (RANK, {"t": "manifested", **ROUND, "step": 15, "dir": DIR, "error": "rank-1.state.pt has 12 bytes, not 5120"}),
    (TO_RANK, {"t": "cancel", **ROUND}),
    (RANK, {"t": "cancelled", **ROUND, "step": 15}),
    (TO_RANK, {"t": "release", **ROUND}),
    (RANK, {"t": "released", **ROUND, "step": 15}),
    (TO_RANK, {"t": "abort", "attempt": 3, "reason": "gang restarts as attempt 4"}),
    (TO_RANK, {"t": "ping"}),
    (
        RANK,
        {"t": "pong", "attempt": 3, "pid": 77, "step": 12, "step_ns": 6000, "section": "step", "section_ns": 5000},
    ),
    (
        RANK,
        {
            "t": "error",
            "attempt": 3,
            "step": 12,
            "error": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        },
    ),
    (
        RANK,
        {
            "t": "collectives",
            "attempt": 3,
            "step": 12,
            "groups": [
                {
                    "name": "0",
                    "desc": "default_pg",
                    "ranks": "0-1",
                    "size": 2,
                    "enqueued": 57,
                    "started": -1,
                    "completed": 56,
                    "op": "gloo:all_reduce [[4]]",
                }
            ],
        },
    ),
    (RANK, {"t": "bye", "attempt": 3, "step": 100, "code": 0}),
    (
        LAUNCHER,
        {
            "t": "hello",
            "v": 1,
            "role": "launcher",
            "pid": 1,
            "state": "waiting",
            "attempt": -1,
            "nproc": 1,
            "nnodes": 2,
            "node_rank": 1,
            "job_uid": "2f9c7b5e-7e0c-4d5a-9a55-1d8e4a1b0c3d",
            "torch": "1.13.0",
        },
    ),
    (TO_LAUNCHER, {"t": "alone"}),
    (TO_LAUNCHER, {"t": "alone", "heal_wait_s": 0}),
    (TO_LAUNCHER, {"t": "wait"}),
    (
        TO_LAUNCHER,
        {
            "t": "start",
            "attempt": 4,
            "node_rank": 1,
            "nnodes": 2,
            "nproc": 1,
            "world_size": 2,
            "master_addr": "10.0.0.7",
            "master_port": 29517,
        },
    ),
    (TO_LAUNCHER, {"t": "stop", "attempt": 4}),
    (LAUNCHER, {"t": "state", "state": "running", "attempt": 4, "pids": [91]}),
    (LAUNCHER, {"t": "exit", "attempt": 3, "local_rank": 0, "pid": 77, "code": 75, "signal": 0, "told": False}),
    (LAUNCHER, {"t": "exit", "attempt": 3, "local_rank": 0, "pid": 77, "code": -1, "signal": 9, "told": True}),
]


def golden_ring():
    """A ring of 8 records that has turned over once, with every header field set."""
    second = 1_000_000_000
    r = ring.Ring.create(
        None, capacity=8, clock=lambda: 5 * second, wall=lambda: 1_700_000_000 * second, pid=4242, rank=3, local_rank=1,
        world_size=4, attempt=2, flags=ring.FLAG_LAUNCHER | ring.FLAG_CAN_SAVE | ring.FLAG_TOKENS,
        gpu_uuid="GPU-6e5a1f2c-0b0d-4d6e-9a55-1d8e4a1b0c3d", torch_version="2.3.1+cu121",
        job_uid="5d0c8a4e-7b7e-4b0a-9d0a-3f1f2b9c1a77", role="pp1/tp0",
        workload="model=gpt-124m;tokens=524288;seq=1024",
        flops_per_step=6.5e12, peak_flops=9.89e14,
    )  # fmt: skip
    r.resumed(100, 6 * second)
    for n in range(1, 12):
        flags = ring.RECORD_LOSS | (ring.RECORD_GRAD_NORM if n % 2 else 0)
        loss, norm = 2.5 / n, 0.5 * n if n % 2 else 0.0
        if n == 9:
            flags, loss = ring.RECORD_LOSS | ring.RECORD_NOT_FINITE, float("inf")
        r.record(
            100 + n, 6 * second + n * 200_000_000, 200_000_000 - n, 1, flags, loss, norm, 64 * n,
            (1_000_000 + n, 50_000_000 + n, 100_000_000 + n, 3_000_000 + n, 20_000_000 + n),
        )  # fmt: skip
        if n == 9:
            r.nonfinite()
            r.settle(9)  # the last two records wait for what a device knows
    r.amend(10, ring.RECORD_DEVICE, forward=51_000_000, launch=400_000, loss=0.125)
    r.settle(10)
    r.memory(9 * second, 40 << 30, 60 << 30, 55 << 30, 2)
    r.checkpoint(110, 9 * second, 125_000_000, 1_053_696)
    r.claim(12, 2, 109, 77, 9 * second)
    r.section("validation", 9 * second + 1)
    r.beat(9 * second + 2)
    r.error("RuntimeError: gloo connection closed by peer\nsecond line is not kept")
    r.set("exit", ring.EXIT_EXCEPTION)
    return bytes(r._buffer)


def main(directory):
    os.makedirs(directory, exist_ok=True)
    data = golden_ring()
    with open(os.path.join(directory, "ring-v1.bin"), "wb") as f:
        f.write(data)
    expected = ring.parse(data)
    for record in expected["records"]:  # JSON has no infinity
        record["loss"] = record["loss"] if abs(record["loss"]) != float("inf") else "+Inf"
    with open(os.path.join(directory, "ring-v1.json"), "w") as f:
        json.dump(expected, f, indent=1)
        f.write("\n")
    with open(os.path.join(directory, "messages.jsonl"), "w") as f:
        for sender, message in MESSAGES:
            f.write(json.dumps({"from": sender, "message": message}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "hook", "testdata"))
