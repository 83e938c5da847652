"""A real gang: two gloo ranks, the sandbox's training job, and a small agent."""

import json
import os
import signal
import time

import pytest
from agent import make_manifest, save_round, wait_until

from pitcrew_torch import checkpoint
from pitcrew_torch.options import free_port

LEFT = 75


@pytest.fixture
def gang(job):
    """Two ranks under one launcher, stepping, with no periodic checkpoints; and a connection to each rank."""
    process, pod = job.launch("--nproc-per-node=2", "--standalone", CKPT_EVERY=0, PITCREW_AGENT_WAIT=0)
    lines = [pod.rank(0), pod.rank(1)]
    wait_until(lambda: pod.step(0) > 3, what="the first steps")
    return job, process, pod, lines


def assert_as_uninterrupted(job, uninterrupted, ranks=(0, 1)):
    for rank in ranks:
        steps = job.steps(rank)
        assert steps
        for step, loss, attempt in steps:
            assert loss == uninterrupted[rank][step], "rank %d, attempt %d, step %d" % (rank, attempt, step)


def test_a_round_saves_all_ranks_at_one_step_and_the_next_attempt_resumes_there_bit_identically(gang, uninterrupted):
    job, _, pod, lines = gang
    launcher = pod.launcher()
    at_step = max(pod.step(0), pod.step(1)) + 4
    saved = save_round(lines, "r1", 0, at_step)
    assert [m["step"] for m in saved] == [at_step, at_step]
    assert all("error" not in m for m in saved)
    assert [f["name"] for f in saved[0]["files"]] == ["model.pt", "rank-0.state.pt"]
    assert [f["name"] for f in saved[1]["files"]] == ["rank-1.state.pt"]
    assert pod.ring(0)["section_name"] == "held" and pod.step(0) == pod.step(1) == at_step
    assert make_manifest(lines[0], "r1", 0, saved)["crc32"]
    manifest = checkpoint.load_manifest(saved[0]["dir"])
    checkpoint.verify(saved[0]["dir"], manifest["files"])
    assert manifest["req"] == "r1" and manifest["periodic"] is False

    launcher.send("stop", attempt=1)
    assert launcher.expect("state", state="stopped")["pids"] == []
    launcher.send("start", attempt=1, node_rank=0, nnodes=1, nproc=2, world_size=2, master_addr="127.0.0.1",
                  master_port=free_port())  # fmt: skip
    pod.rank(0, attempt=1)
    wait_until(lambda: pod.ring(0)["attempt"] == 1 and pod.step(0) > at_step + 5, what="steps of attempt 1")
    steps = job.steps(0)
    assert [s for s, _, a in steps if a == 0][-1] == at_step  # nobody went on alone
    assert next(s for s, _, a in steps if a == 1) == at_step + 1  # and nothing is done twice
    assert_as_uninterrupted(job, uninterrupted)


def test_release_lets_the_gang_train_on(gang, uninterrupted):
    job, _, pod, lines = gang
    at_step = pod.step(0) + 4
    saved = save_round(lines, "r1", 0, at_step)
    for line in lines:
        line.send("release", req="r1", attempt=0)
        line.expect("released", req="r1")
    wait_until(lambda: min(pod.step(0), pod.step(1)) > at_step + 3, what="steps after the release")
    again = save_round(lines, "r2", 0, pod.step(0) + 4)  # and it can be asked again
    assert again[0]["step"] > saved[0]["step"]
    assert_as_uninterrupted(job, uninterrupted)


def test_an_excluded_rank_is_not_the_writer(gang):
    _, _, pod, lines = gang
    saved = save_round(lines, "r1", 0, pod.step(0) + 4, exclude=[0])
    assert [f["name"] for f in saved[0]["files"]] == ["rank-0.state.pt"]
    assert [f["name"] for f in saved[1]["files"]] == ["model.pt", "rank-1.state.pt"]


def test_a_step_already_past_is_refused_and_the_others_go_on_after_cancel(gang):
    _, _, pod, lines = gang
    lines[0].send("arm", req="r1", attempt=0, at_step=pod.step(0) + 5, deadline_ms=10_000)
    lines[0].expect("armed")
    lines[1].send("arm", req="r1", attempt=0, at_step=1, deadline_ms=10_000)
    assert lines[1].expect("nack")["reason"] == "past"
    lines[0].expect("held")
    lines[0].send("cancel", req="r1", attempt=0)
    lines[0].expect("cancelled")
    before = pod.step(0)
    wait_until(lambda: pod.step(0) > before + 5, what="steps after the cancel")


def test_holders_leave_at_their_deadline_with_75_and_never_go_on(gang):
    _, _, pod, lines = gang
    launcher = pod.launcher()
    at_step = pod.step(0) + 40  # well ahead, however slowly this test runs
    for line in lines:
        line.send("arm", req="r1", attempt=0, at_step=at_step, deadline_ms=400)
    launcher.expect("state", state="failed")
    assert {launcher.expect("exit")["code"] for _ in lines} == {LEFT}
    assert pod.step(0) == pod.step(1) == at_step
    assert "held at step %d" % at_step in pod.ring(0)["last_error"]
    assert lines[0].closed() and not [m for m in lines[0].seen if m["t"] == "bye"]


def test_a_replaced_agent_picks_the_round_up(gang):
    _, _, pod, lines = gang
    at_step = pod.step(0) + 4
    arm = {"req": "r1", "attempt": 0, "at_step": at_step, "deadline_ms": 20_000}
    for line in lines:
        line.send("arm", **arm)
    for line in lines:
        line.expect("held")
        line.close()
    lines = [pod.rank(0), pod.rank(1)]
    for line in lines:
        line.send("arm", **arm)
        line.expect("armed")
        line.expect("held")
    for line in lines:
        line.send("go", req="r1", attempt=0)
    first = [line.expect("saved") for line in lines]
    for line in lines:
        line.send("go", req="r1", attempt=0)
    assert [line.expect("saved") for line in lines] == first


def test_abort_ends_a_rank_that_is_blocked_in_a_collective(gang):
    _, _, pod, lines = gang
    launcher = pod.launcher()
    os.kill(pod.ring(1)["pid"], signal.SIGSTOP)  # rank 0 now waits in an all-reduce for ever
    step = wait_until(lambda: _stands_still(pod, 0), what="rank 0 to block")
    assert wait_until(lambda: _beats(pod, 0), what="rank 0's heartbeat")
    assert not _beats(pod, 1)
    lines[0].send("abort", attempt=1, reason="another attempt's")
    lines[0].send("ping")
    assert lines[0].expect("pong")["step"] == step
    lines[0].send("abort", attempt=0, reason="gang restarts")
    assert launcher.expect("exit", local_rank=0)["code"] == LEFT


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_rank_costs_the_steps_since_the_last_periodic_checkpoint(job, uninterrupted, victim, how):
    _, pod = job.launch("--nproc-per-node=2", "--standalone", PITCREW_AGENT_WAIT=0)
    launcher = pod.launcher()
    wait_until(lambda: pod.step(0) > 24 and job.saved(), what="step 25 and a checkpoint")
    saved = job.saved()
    os.kill(pod.ring(victim)["pid"], how)
    if how == signal.SIGKILL:
        assert launcher.expect("exit", local_rank=victim)["signal"] == signal.SIGKILL
    launcher.send("start", attempt=1, node_rank=0, nnodes=1, nproc=2, world_size=2, master_addr="127.0.0.1",
                  master_port=free_port())  # fmt: skip
    wait_until(
        lambda: all(pod.step(rank) > saved + 10 and pod.ring(rank)["attempt"] == 1 for rank in (0, 1)),
        what="attempt 1's steps",
    )
    resumed = next(s for s, _, a in job.steps(0) if a == 1)
    assert resumed > saved and resumed % 20 == 1
    assert pod.ring(0)["resumed_step"] == resumed - 1 and pod.ring(0)["flags"] & 8
    assert_as_uninterrupted(job, uninterrupted)


def test_a_damaged_newest_checkpoint_is_set_aside_and_the_one_before_it_is_used(job, uninterrupted):
    process, _ = job.launch("--nproc-per-node=2", "--standalone", pod=None, TOTAL_STEPS=65, STEP_SECONDS=0)
    assert process.wait(60) == 0
    damaged, torn, sound = ((job.checkpoints / ("step-%d.attempt-0" % s)) for s in (60, 40, 20))
    with open(damaged / "rank-1.state.pt", "r+b") as f:  # rank 1 verifies this one, rank 0 must hear of it
        f.seek(100)
        f.write(b"\xff\xfe")
    (torn / "MANIFEST.json").unlink()  # killed between the rename of the files and the manifest's
    (torn / "rank-1.done.json").unlink()
    process, _ = job.launch("--nproc-per-node=2", "--standalone", pod=None, TOTAL_STEPS=65, STEP_SECONDS=0,
                            PITCREW_ATTEMPT=1)  # fmt: skip
    assert process.wait(60) == 0
    names = sorted(os.listdir(job.checkpoints))
    assert "step-60.attempt-0.quarantine" in names and "step-40.attempt-0" in names  # the torn one may be in progress
    assert sound.is_dir()
    for rank in (0, 1):
        assert [s for s, _, _ in job.steps(rank)][65] == 21
    assert_as_uninterrupted(job, uninterrupted)


def test_a_complete_set_of_receipts_serves_where_the_manifest_was_not_written(job):
    process, _ = job.launch("--nproc-per-node=2", "--standalone", pod=None, TOTAL_STEPS=25, STEP_SECONDS=0)
    assert process.wait(60) == 0
    (job.checkpoints / "step-20.attempt-0" / "MANIFEST.json").unlink()
    process, _ = job.launch("--nproc-per-node=2", "--standalone", pod=None, TOTAL_STEPS=30, STEP_SECONDS=0)
    assert process.wait(60) == 0
    assert [s for s, _, _ in job.steps(0)][25] == 21


def test_an_exception_is_told_before_the_process_is_gone(job):
    gpu = job.root / "gpu"
    gpu.write_bytes(b"o")
    process, pod = job.launch("--standalone", PITCREW_SIM_GPU=gpu, PITCREW_HEAL_WAIT=0, PITCREW_AGENT_WAIT=0)
    line, launcher = pod.rank(0), pod.launcher()
    gpu.write_bytes(b"e")
    assert "uncorrectable ECC error" in line.expect("error")["error"]
    assert line.closed() and not [m for m in line.seen if m["t"] == "bye"]
    assert launcher.expect("exit")["code"] == 1
    assert process.wait(30) == 1
    assert pod.ring(0)["exit"] == 2 and "ECC" in pod.ring(0)["last_error"]


def test_a_clean_end_says_bye(job):
    process, pod = job.launch("--standalone", TOTAL_STEPS=60, PITCREW_AGENT_WAIT=0)
    line = pod.rank(0)
    assert line.expect("bye")["code"] == 0
    assert process.wait(30) == 0
    assert pod.ring(0)["exit"] == 1 and pod.ring(0)["section_name"] == "out"


def test_manifest_names_every_ranks_files(gang):
    _, _, pod, lines = gang
    saved = save_round(lines, "r1", 0, pod.step(0) + 4)
    broken = json.loads(json.dumps(saved))
    broken[1]["files"][0]["bytes"] += 1
    assert "bytes" in make_manifest(lines[1], "r1", 0, broken)["error"]
    broken[1]["files"][0]["name"] = "../rank-1.state.pt"
    assert "outside" in make_manifest(lines[1], "r1", 0, broken)["error"]
    assert not os.path.exists(os.path.join(saved[0]["dir"], "MANIFEST.json"))
    assert "error" not in make_manifest(lines[1], "r1", 0, saved)  # any rank may write it


def _stands_still(pod, local_rank):
    step = pod.step(local_rank)
    time.sleep(0.3)
    return step if pod.step(local_rank) == step else None


def _beats(pod, local_rank):
    before = pod.ring(local_rank)["heartbeat_ns"]
    time.sleep(0.6)
    return pod.ring(local_rank)["heartbeat_ns"] != before
