"""Two pods of one rank each, as on a cluster: one is replaced, the other's launcher stays warm."""

import os
import signal
import sys

import pytest
from agent import wait_until
from conftest import TRAINER

from pitcrew_torch.options import free_port


def launch(job, node_rank, pod, port):
    flags = ["--nnodes=2", "--node-rank=%d" % node_rank, "--master-addr=127.0.0.1", "--master-port=%d" % port]
    return job.launch(*flags, pod=pod, PITCREW_AGENT_WAIT=30)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_replaced_pod_joins_the_survivor_that_kept_its_process(job, uninterrupted, victim):
    survivor = 1 - victim
    port = free_port()
    jobs = {rank: launch(job, rank, "pod-%d" % rank, port) for rank in (0, 1)}
    processes = {rank: process for rank, (process, _) in jobs.items()}
    pods = {rank: pod for rank, (_, pod) in jobs.items()}
    lines = {rank: pod.launcher() for rank, pod in pods.items()}
    for line in lines.values():
        line.send("alone")
    wait_until(lambda: pods[0].step(0) > 22 and job.saved(), what="step 23 and a checkpoint")
    saved = job.saved()

    os.killpg(processes[victim].pid, signal.SIGKILL)  # the pod, its launcher and its worker are gone
    lines[survivor].send("stop", attempt=1)
    lines[survivor].expect("state", state="stopped")
    _, replacement = launch(job, victim, "pod-new", port)
    line = replacement.launcher()
    assert line.hello["state"] == "waiting"
    start = {
        "attempt": 1,
        "nnodes": 2,
        "nproc": 1,
        "world_size": 2,
        "master_addr": "127.0.0.1",
        "master_port": free_port(),
    }
    line.send("start", node_rank=victim, **start)
    lines[survivor].send("start", node_rank=survivor, **start)
    wait_until(
        lambda: all(p.step(0) > saved + 6 and p.ring(0)["attempt"] == 1 for p in (replacement, pods[survivor])),
        what="steps of attempt 1",
    )
    assert processes[survivor].poll() is None
    for rank in (0, 1):
        steps = job.steps(rank)
        resumed = next(s for s, _, a in steps if a == 1)
        assert resumed > saved and resumed % 20 == 1
        assert all(loss == uninterrupted[rank][step] for step, loss, _ in steps)


def test_a_launcher_that_does_not_know_its_rank_says_what_to_set(job):
    process, _ = job.launch("--nnodes=2", pod=None)
    assert process.wait(30) == 2
    assert "JOB_COMPLETION_INDEX" in job.output()


def test_the_same_job_runs_under_stock_torchrun_and_resumes_bit_identically(job, uninterrupted):
    argv = [
        sys.executable,
        str(TRAINER / "torchrun.py"),
        "--nnodes=1",
        "--node_rank=0",
        "--master_addr=127.0.0.1",
        "--master_port=%d" % free_port(),  # not --standalone: that wants the host to resolve its own name
        "--nproc_per_node=2",
        str(TRAINER / "train.py"),
    ]
    for total in (25, 30):
        process, pod = job.start(argv, TOTAL_STEPS=total, STEP_SECONDS=0)
        assert process.wait(60) == 0, job.output()
    assert pod.ring(0)["resumed_step"] == 20 and not pod.ring(0)["flags"] & 1
    for rank in (0, 1):
        steps = job.steps(rank)
        assert [s for s, _, _ in steps] == [*range(1, 26), *range(21, 31)]
        assert all(loss == uninterrupted[rank][step] for step, loss, _ in steps)


def test_the_stand_in_trainer_speaks_the_same_protocol(job):
    flags = ["--nproc-per-node=2", "--standalone"]
    for attempt, total in ((0, 25), (1, 30)):
        process, pod = job.launch(*flags, script=TRAINER / "standin.py", TOTAL_STEPS=total, STEP_SECONDS=0,
                                  PITCREW_ATTEMPT=attempt, PITCREW_AGENT_WAIT=0)  # fmt: skip
        assert process.wait(60) == 0, job.output()
    assert pod.ring(0)["torch_version"] == "stand-in" and pod.ring(0)["resumed_step"] == 20
    assert "STAND-IN" in job.output()
    losses = {}
    for step, loss, _ in job.steps(1):
        assert losses.setdefault(step, loss) == loss
