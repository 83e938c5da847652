"""resume(), ranks and worlds, and what a hook does once somebody else owns its directory."""

import json
import os
import subprocess
import sys
import threading
import time
import warnings

import pytest
from agent import Pod, wait_until
from conftest import PYTHON

from pitcrew_torch import ClaimRefused, NoCheckpoint, claims, custody, identity, storage
from pitcrew_torch.hook import FENCED, Hook


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(storage, "DELAYS", (0.001, 0.001))
    monkeypatch.setattr(storage, "IN_A_STEP", (0.001,))


@pytest.fixture
def hook(tmp_path):
    made = []

    def make(save=None, load=None, attempt=0, world=1, distributed=lambda: None, every=10, **environ):
        environ = {"RANK": "0", "WORLD_SIZE": str(world), "PITCREW_ATTEMPT": str(attempt), **environ}

        def writes(context):
            with context.open("rank-%d.bin" % context.rank) as f:
                f.write(b"x" * 100)

        h = Hook(
            save or writes, load or (lambda context: None), checkpoint_dir=str(tmp_path / "c"), checkpoint_every=every,
            environ=environ, distributed=distributed,
        )  # fmt: skip
        made.append(h)
        return h

    previous = sys.excepthook, sys.exit
    yield make
    for h in made:
        h.close()
    sys.excepthook, sys.exit = previous


def train(h, steps):
    for _ in range(steps):
        h.step(1.0)
        if h._saver is not None:
            h._saver.wait(5)


def there(tmp_path):
    return sorted(p.name for p in (tmp_path / "c").glob("step-*"))


def test_a_job_of_another_size_does_not_start_over_and_keeps_what_it_writes(hook, tmp_path):
    """Before: resume passed the eight-rank checkpoints over, and prune then deleted each new one as it was written."""
    old = hook(world=1)
    train(old, 20)
    old.close()
    for path in (tmp_path / "c").glob("step-*/MANIFEST.json"):
        path.write_text(json.dumps(dict(json.loads(path.read_text()), world_size=8)))
    with pytest.raises(NoCheckpoint, match=r"step-20.attempt-0: it is of 8 ranks(.|\n)*fresh=True"):
        hook(attempt=1).resume()
    h = hook(attempt=2)
    assert h.resume(fresh=True) == 0
    train(h, 50)
    h.close()
    assert {"step-10.attempt-0", "step-20.attempt-0"} <= set(there(tmp_path))
    assert {"step-30.attempt-2", "step-40.attempt-2", "step-50.attempt-2"} <= set(there(tmp_path))
    again = hook(attempt=3)
    assert again.resume() == 50


def test_a_hook_whose_claim_another_takes_over_would_end_its_process(hook, left, monkeypatch):
    """Seen: its heartbeat's first look came after the next test step's claim, and ended the test run with code 76."""
    go, check = threading.Event(), custody.Owner.check
    monkeypatch.setattr(custody.Owner, "check", lambda owner: (go.wait(10), check(owner)))
    monkeypatch.setattr(custody.Custody, "_remember", lambda *_: "")
    hook(attempt=1).resume()
    hook(attempt=2).resume()
    go.set()
    wait_until(lambda: left == [FENCED], 10)


def test_resume_starts_at_the_callers_step_where_there_is_no_checkpoint(hook, tmp_path):
    """nanoGPT loads its own weights of iteration 50: its next checkpoint is of 60, not of 10."""
    h = hook()
    assert h.resume(step=50) == 50
    train(h, 10)
    assert there(tmp_path) == ["step-60.attempt-0"]
    h.close()
    assert hook(attempt=1).resume(step=50) == 60


def test_fresh_ignores_earlier_runs_for_good_but_not_its_own_attempts(hook, tmp_path):
    old = hook(PITCREW_JOB_UID="old")
    old.resume()
    train(old, 50)
    old.close()
    run = {"PITCREW_JOB_UID": "new"}
    first = hook(attempt=0, **run)
    assert first.resume(fresh=True) == 0
    train(first, 20)
    first.close()
    assert there(tmp_path)[0] == "step-10.attempt-0.epoch-2"  # one attempt number, two runs, two names
    second = hook(attempt=1, **run)
    assert second.resume(fresh=True) == 20
    second.close()
    assert hook(attempt=2, **run).resume() == 20
    assert "step-50.attempt-0" in there(tmp_path)


def test_a_run_that_never_calls_resume_keeps_its_checkpoints_and_is_preferred_later(hook, tmp_path):
    old = hook()
    old.resume()
    train(old, 50)
    old.close()
    h = hook(attempt=1)
    train(h, 30)
    h.close()
    assert {"step-%d.attempt-1" % s for s in (10, 20, 30)} <= set(there(tmp_path))
    assert {"step-50.attempt-0", "step-40.attempt-0"} <= set(there(tmp_path))
    assert hook(attempt=2).resume() == 30


def test_read_only_touches_nothing_and_saves_nothing(hook, tmp_path):
    trainer = hook()
    trainer.resume()
    train(trainer, 20)
    trainer._saver.asked(25, ())  # in progress: no manifest yet
    loaded = []
    before = sorted(str(p) for p in (tmp_path / "c").rglob("*"))
    reader = hook(load=lambda context: loaded.append(context.step), PITCREW_JOB_UID="evaluation")
    assert reader.resume(read_only=True) == 20 and loaded == [20]
    train(reader, 30)
    assert sorted(str(p) for p in (tmp_path / "c").rglob("*")) == before and not reader.can_save
    train(trainer, 10)  # and the training job goes on
    assert "step-30.attempt-0" in there(tmp_path)


def test_an_evaluation_that_forgets_read_only_does_not_stop_a_live_job(hook, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT_EVERY", 0.02)
    monkeypatch.setattr(claims, "WATCHED", 0.3)
    trainer = hook(PITCREW_JOB_UID="a")
    trainer.resume()
    wait_until(lambda: claims.beat(str(tmp_path / "c"), 1), 5)
    with pytest.raises(ClaimRefused, match="another job is training in this directory"):
        hook(PITCREW_JOB_UID="b").resume()
    train(trainer, 10)
    assert there(tmp_path) == ["step-10.attempt-0"]


def test_an_incomplete_folder_is_no_reason_not_to_start(hook, tmp_path):
    (tmp_path / "c" / "step-10.attempt-7").mkdir(parents=True)
    assert hook().resume() == 0 and there(tmp_path) == ["step-10.attempt-7"]


ZOMBIE = """
import os, sys, time
from pitcrew_torch import claims
claims.BEAT_EVERY = float(os.environ["BEAT"])
from pitcrew_torch.hook import Hook
def save(context):
    with context.open("rank-0.bin") as f: f.write(b"x")
h = Hook(save, lambda context: None, checkpoint_dir=os.environ["C"], checkpoint_every=5)
print(h.resume(), flush=True)
while True:
    h.step(1.0)
    time.sleep(0.01)
"""


@pytest.mark.parametrize("beat", ["3600", "0.1"], ids=["at its next save", "at its next heartbeat"])
def test_an_attempt_whose_directory_was_claimed_ends_with_76_and_says_why(hook, tmp_path, beat):
    env = dict(os.environ, PITCREW_DIR=str(tmp_path), PYTHONPATH=str(PYTHON), C=str(tmp_path / "c"), BEAT=beat,
               PITCREW_ATTEMPT="0", PITCREW_JOB_UID="j")  # fmt: skip
    zombie = subprocess.Popen([sys.executable, "-c", ZOMBIE], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until((tmp_path / "c" / "step-10.attempt-0" / "MANIFEST.json").exists, 30)
        later = hook(attempt=1, PITCREW_JOB_UID="j", PITCREW_ATTEMPT_BY="agent")  # whatever the age of this process is
        resumed = later.resume()
        _, errors = zombie.communicate(timeout=30)
        assert zombie.returncode == 76
        assert b"was claimed by claim 2 (attempt 1" in errors and b"Remedy" in errors
        assert "left attempt 0" in Pod(tmp_path).ring(0)["last_error"]
        assert resumed >= 10
        complete = [p.parent.name for p in (tmp_path / "c").glob("step-*/MANIFEST.json")]
        assert all(int(n[5:].split(".")[0]) <= resumed for n in complete if n.endswith("attempt-0")), (
            complete,
            resumed,
        )
    finally:
        zombie.kill()


def test_a_process_ends_although_the_storage_hangs_its_heartbeat(tmp_path):
    code = (
        "import os, time\n"
        "from pitcrew_torch import claims\n"
        "claims.write_beat = lambda *_, **__: time.sleep(3600)\n"
        "from pitcrew_torch.hook import Hook\n"
        "h = Hook(lambda c: [], lambda c: None, checkpoint_dir=os.environ['C'])\n"
        "h.resume(); h.step()\n"
    )
    env = dict(os.environ, PYTHONPATH=str(PYTHON), C=str(tmp_path / "c"))
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    assert time.monotonic() - began < 20


def test_training_goes_on_where_the_claim_cannot_be_made_at_a_save(hook, tmp_path):
    (tmp_path / "c").write_text("a file in its place")
    h = hook(every=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        train(h, 5)
    assert h.step_count == 5 and len(seen) == 1 and "cannot claim" in str(seen[0].message)


# (environment, what torch.distributed says) -> (rank, local rank, world size, part of the problem)
PLACES = {
    "nothing": ({}, None, (0, 0, 1), ""),
    "torchrun": ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, None, (3, 1, 8), ""),
    "torchrun, initialized": ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8), (3, 1, 8), ""),
    "mp.spawn": ({}, (1, 2), (1, 1, 2), ""),
    "Lightning's launcher": ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (1, 2), (1, 1, 2), ""),
    "the same, not initialized yet": ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, None, (0, 1, 2), "after init_process"),
    "srun": ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, None, (5, 1, 8), ""),
    "a batch script without srun": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None, (0, 0, 1), ""),
    "torchrun inside srun": (
        {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"},
        None, (9, 1, 16), ""),
    "mpirun": (
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
        None, (2, 0, 4), ""),
    "two that disagree": ({"RANK": "0", "WORLD_SIZE": "2"}, (1, 2), (1, 1, 2), "RANK is 0 and torch.distributed"),
    "two sizes": ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 2), (0, 0, 2), "WORLD_SIZE is 1 and torch.distributed says 2"),
    "a rank outside": ({"RANK": "8", "WORLD_SIZE": "8"}, None, (8, 8, 8), "rank 8 of 8 ranks is impossible"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES.values(), ids=PLACES)
def test_rank_and_world_size_come_from_whoever_knows(case):
    environ, told, (rank, local, world), problem = case
    place = identity.place(environ, told)
    assert (place.rank, place.local_rank, place.world_size) == (rank, local, world)
    assert problem in place.problem and bool(problem) == bool(place.problem)


def test_ranks_that_two_sources_number_differently_save_nothing_and_say_so_once(hook, tmp_path):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        h = hook(world=2, distributed=lambda: (1, 2))
        train(h, 30)
    assert not h.can_save and h.step_count == 30 and there(tmp_path) == []
    assert len(seen) == 1 and "unset RANK in this process, or set it to 1" in str(seen[0].message)


def test_a_rank_that_torch_numbers_only_after_attach_saves_nothing(hook, tmp_path):
    told = [None]
    h = hook(world=1, distributed=lambda: told[0])
    told[0] = (1, 2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        train(h, 20)
    assert there(tmp_path) == [] and "call attach() after init_process_group" in str(seen[0].message)
    assert h.step_count == 20
