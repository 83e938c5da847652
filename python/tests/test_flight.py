"""Flight recorder dumps and what a stalled rank says of its collectives."""

import json
import os
import random
import subprocess
import sys

import pytest
from agent import Pod
from conftest import PYTHON
from dumps import NCCL, assert_small_and_wellformed, entry, mangled, status

from pitcrew_torch import flight, ring


def test_a_dump_tells_the_newest_collective_of_each_group():
    assert flight.groups_in(json.dumps(NCCL)) == {
        "0": {"desc": "default_pg", "enqueued": 12, "started": 11, "completed": 10, "op": "nccl:reduce_scatter [[4]]"},
        "7": {"desc": "default_pg", "enqueued": 5, "started": 5, "completed": 5, "op": "nccl:all_reduce [[4]]"},
    }


def test_without_entries_only_a_single_group_can_be_named():
    alone = {"pg_config": {"0": {"desc": "default_pg"}}, "pg_status": {"0": status(3, 2, 2)}}
    assert flight.groups_in(json.dumps(alone).encode())["0"]["enqueued"] == 3
    assert flight.groups_in(json.dumps(dict(NCCL, entries=[]))) == {}


def test_a_version_that_tells_no_status_is_read_by_its_entries():
    assert flight.groups_in(json.dumps({"entries": NCCL["entries"]}))["0"]["enqueued"] == 12


def test_nonsense_gives_a_small_and_wellformed_answer():
    generator = random.Random(20261121)
    seeds = [json.dumps(NCCL), json.dumps({"entries": [entry(0, "0", 1)] * 3}), "[]", "", "[" * 100_000]
    assert_small_and_wellformed(json.dumps({"pg_config": {"g" * 1000: {}}, "pg_status": {"0": {}}}))
    for seed in seeds:
        assert_small_and_wellformed(seed)
        for _ in range(300):
            cut = bytearray(seed.encode()[:5000])
            for _ in range(generator.randrange(4)):
                if cut:
                    cut[generator.randrange(len(cut))] = generator.randrange(256)
            assert_small_and_wellformed(bytes(cut[: generator.randrange(len(cut) + 1)]))
    for _ in range(2000):
        assert_small_and_wellformed(json.dumps(mangled(NCCL, generator)))
    assert_small_and_wellformed(
        json.dumps(
            {
                "pg_status": {str(i): status(i, i, i) for i in range(500)},
                "entries": [entry(i, str(i), i) for i in range(500)],
            }
        )
    )


def test_ranks_are_told_as_ranges_unless_that_is_long():
    assert flight.ranges([3, 0, 1, 2, 8]) == "0-3,8"
    assert flight.ranges([]) == ""
    assert flight.ranges(range(0, 4096, 2)) == ""


def test_the_longest_of_the_last_steps_is_known_to_the_side_thread():
    r = ring.Ring.create(None, capacity=4)
    assert r.longest() == 0
    for n, took in enumerate([900, 5, 7, 6, 4, 3], 1):
        r.record(n, n, took)
    assert r.longest(4) == 7


def counts_collectives():
    code = "import torch, torch.distributed.distributed_c10d as d; assert hasattr(d, '_world')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.skipif(not counts_collectives(), reason="this torch's gloo keeps no count of collectives")
def test_the_rank_that_did_not_enter_a_collective_is_the_one_that_is_behind(tmp_path):
    body = """
import os, sys, time, torch, torch.distributed as dist, pitcrew_torch as pitcrew
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=2)
pitcrew.attach(torch.nn.Linear(1, 1))
for step in range(5): dist.all_reduce(torch.ones(4)); pitcrew.step()
if rank == 1: time.sleep(60)
dist.all_reduce(torch.ones(4))
"""
    ranks = []
    try:
        for rank in range(2):
            env = dict(
                os.environ, PITCREW_DIR=str(tmp_path), PYTHONPATH=str(PYTHON), GLOO_SOCKET_IFNAME="lo",
                STORE=str(tmp_path / "store"), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
                TORCH_FR_BUFFER_SIZE="64",
            )  # fmt: skip
            ranks.append(subprocess.Popen([sys.executable, "-c", body], env=env))
        said = [Pod(tmp_path).rank(rank).expect("collectives", timeout=60) for rank in range(2)]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    waiting, behind = (message["groups"][0] for message in said)
    assert waiting["enqueued"] == behind["enqueued"] + 1
    assert waiting["completed"] == behind["completed"] == behind["enqueued"]
    for group in (waiting, behind):
        assert (group["name"], group["desc"], group["ranks"], group["size"]) == ("0", "default_pg", "0-1", 2)
        assert group["op"].startswith("gloo:all_reduce")
