"""The launcher with bare workers (no torch): start, stop, wait, alone, failures, signals."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from agent import wait_until

HERE = Path(__file__).resolve().parent
START = {"node_rank": 0, "nnodes": 1, "nproc": 1, "world_size": 1, "master_addr": "10.1.2.3", "master_port": 4567}


@pytest.fixture
def bare(job):
    """bare(acts, flags, env): a launcher without torch, its pod, and said(attempt, rank) by its workers."""

    def start(*acts, flags=("--nproc-per-node=1",), pod="pod-0", **env):
        env.setdefault("PITCREW_AGENT_WAIT", 0)
        argv = [sys.executable, str(HERE / "bare.py"), *flags, str(HERE / "worker_script.py"), *acts]
        process, pod = job.start(argv, pod, **env)

        def said(attempt, rank=0):
            path = job.root / ("said-%d-%d.json" % (attempt, rank))
            wait_until(path.exists, what="%s\n%s" % (path.name, job.output()))
            return json.loads(path.read_text())

        return process, pod, said

    return start


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(")", 1)[1].split()[0] != "Z"


def test_alone_it_sets_what_torchrun_sets_and_ends_with_its_workers(bare):
    process, _, said = bare("--lr", "1", flags=["--nproc_per_node", "2", "--nnodes", "1", "--master_port", "4321",
                            "--rdzv-id", "run-7", "--max-restarts", "3"], pod=None)  # fmt: skip
    assert process.wait(20) == 0
    about = said(0, 1)
    assert about["RANK"] == "1" and about["LOCAL_RANK"] == "1" and about["WORLD_SIZE"] == "2"
    assert about["LOCAL_WORLD_SIZE"] == "2" and about["GROUP_RANK"] == "0" and about["MASTER_PORT"] == "4321"
    assert about["TORCHELASTIC_RESTART_COUNT"] == "0" and about["TORCHELASTIC_RUN_ID"] == "run-7"
    assert (
        about["TORCHELASTIC_MAX_RESTARTS"] == "3"
        and about["PITCREW_ATTEMPT"] == "0"
        and about["PITCREW_LAUNCHER"] == "1"
    )
    assert (
        about["argv"][1:] == ["--lr", "1"]
        and about["main"].endswith("worker_script.py")
        and about["name"] == "__main__"
    )
    assert about["path0"] == str(HERE) and about["pgid"] == about["pid"]
    assert said(0, 0)["random"] != about["random"]


def test_a_worker_holds_none_of_the_launchers_sockets(bare):
    process, _, said = bare()
    assert process.wait(20) == 0
    assert said(0)["fds"] == []


def test_start_ends_the_old_attempt_and_forks_the_new_one(bare):
    _, pod, said = bare("sleep=600")
    line = pod.launcher()
    old = said(0)["pid"]
    line.send("start", attempt=3, **dict(START, nnodes=2, node_rank=1, world_size=2))
    end = line.expect("exit", attempt=0)
    assert (end["signal"], end["told"]) == (signal.SIGKILL, True)
    state = line.expect("state", state="running", attempt=3)
    about = said(3, 1)
    assert state["pids"] == [about["pid"]] and not alive(old)
    assert (about["RANK"], about["WORLD_SIZE"], about["MASTER_ADDR"], about["MASTER_PORT"]) == (
        "1",
        "2",
        "10.1.2.3",
        "4567",
    )
    assert about["TORCHELASTIC_RESTART_COUNT"] == "3"


def test_a_start_that_is_not_newer_or_makes_no_sense_is_ignored(bare):
    _, pod, said = bare("sleep=600", PITCREW_AGENT_WAIT=30)
    line = pod.launcher()
    line.send("start", attempt=2, **START)
    pid = said(2)["pid"]
    line.expect("state", state="running", attempt=2)
    line.send("start", attempt=2, **dict(START, master_port=1))
    line.send("start", attempt=1, **START)
    line.send("start", attempt=5, **dict(START, node_rank=7))
    line.send("start", attempt="6", **START)
    line.send("start", attempt=7)
    for _ in range(5):
        state = line.expect("state")
        assert (state["attempt"], state["pids"]) == (2, [pid])
    assert alive(pid)


def test_stop_keeps_the_launcher_warm_for_the_start_of_that_attempt(bare):
    process, pod, said = bare("sleep=600")
    line = pod.launcher()
    pid = said(0)["pid"]
    line.send("stop", attempt=4)
    assert line.expect("state", state="stopped")["pids"] == []
    assert not alive(pid) and process.poll() is None
    line.send("start", attempt=3, **START)  # older than what was stopped for
    assert line.expect("state", state="stopped")
    line.send("start", attempt=4, **START)
    pid = said(4)["pid"]
    line.expect("state", state="running", attempt=4)
    line.send("stop", attempt=4)  # these workers are not older than 4
    assert line.expect("state", state="running", attempt=4)["pids"] == [pid]


def test_stopped_workers_and_what_they_started_end_at_once(bare):
    _, pod, said = bare("deaf", "child", "sleep=600")
    line = pod.launcher()
    group = said(0)["pgid"]
    wait_until(lambda: len(_group(group)) == 2, what="the worker's child")
    os.killpg(group, signal.SIGSTOP)
    began = time.monotonic()
    line.send("stop", attempt=1)
    line.expect("state", state="stopped")
    wait_until(lambda: not _group(group), 2, "the group's end")
    assert time.monotonic() - began < 2


def test_wait_means_no_workers(bare):
    process, pod, said = bare("sleep=600", PITCREW_AGENT_WAIT=30)
    line = pod.launcher()
    assert line.hello["state"] == "waiting" and line.hello["attempt"] == -1
    line.send("wait")
    assert line.expect("state")["state"] == "waiting"
    line.send("alone")
    pid = said(0)["pid"]
    line.send("wait")
    assert line.expect("state", state="waiting")["pids"] == []
    assert not alive(pid) and process.poll() is None


def test_without_an_agent_it_goes_on_alone_after_the_wait(bare):
    process, _, said = bare(PITCREW_AGENT_WAIT=0.3)
    assert process.wait(20) == 0
    assert said(0)["RANK"] == "0"


def test_an_agent_that_leaves_while_the_launcher_waits_does_not_hold_it_for_ever(bare):
    process, pod, _ = bare(PITCREW_AGENT_WAIT=1, PITCREW_HEAL_WAIT=0.3)
    line = pod.launcher()
    line.send("wait")
    line.expect("state")
    line.close()
    assert process.wait(20) == 0


def test_alone_a_failure_is_restarted_up_to_max_restarts_and_then_ends_as_torchrun_does(bare):
    process, _, said = bare("exit=7", flags=["--max-restarts=2"], pod=None)
    assert process.wait(20) == 1
    assert said(2)["TORCHELASTIC_RESTART_COUNT"] == "2"
    process, _, _ = bare("exit-first=7", flags=["--max-restarts=1"], pod=None)
    assert process.wait(20) == 0


def test_one_failed_worker_takes_the_others_with_it(bare):
    process, _, said = bare("sleep=600", flags=["--nproc-per-node=2"], pod=None)
    pids = [said(0, rank)["pid"] for rank in (0, 1)]
    os.kill(pids[1], signal.SIGKILL)
    assert process.wait(20) == 1
    assert not alive(pids[0])


def test_with_an_agent_a_failed_worker_waits_to_be_healed(bare):
    process, pod, said = bare("exit-first=7", "sleep=600")
    line = pod.launcher()
    end = line.expect("exit", attempt=0)
    assert (end["code"], end["told"]) == (7, False)
    line.expect("state", state="failed")
    time.sleep(0.3)
    assert process.poll() is None
    line.send("start", attempt=1, **START)
    said(1)


def test_an_agent_that_heals_nothing_here_says_so_and_the_launcher_does_as_torchrun(bare):
    process, pod, _ = bare("sleep=0.5", "exit=7", PITCREW_AGENT_WAIT=30)
    line = pod.launcher()
    line.send("alone", heal_wait_s=0)
    assert process.wait(20) == 1


def test_an_agent_being_replaced_when_the_worker_fails_is_waited_for(bare):
    process, pod, said = bare("sleep=0.6", "exit=7")
    line = pod.launcher()
    line.close()
    said(0)
    time.sleep(1.0)
    assert process.poll() is None
    assert pod.launcher().hello["state"] == "failed"


def test_sigterm_goes_to_the_workers_and_ends_the_launcher(bare):
    for acts in (["sleep=600"], ["deaf", "sleep=600"]):
        process, _, _ = bare(*acts, pod=None, PITCREW_TERM_GRACE=0.3)
        pid = wait_until(lambda process=process: _child(process.pid), what="a worker")
        time.sleep(0.3)
        process.terminate()
        assert process.wait(10) == 1
        assert not alive(pid)


def test_workers_do_not_outlive_a_killed_launcher(bare):
    process, _, said = bare("sleep=600")
    pid = said(0)["pid"]
    process.kill()
    wait_until(lambda: not alive(pid), 5, "the worker's end")


def test_a_module_runs_as_python_m_would(job):
    (job.root / "mod.py").write_text(
        "import sys, pathlib; pathlib.Path('ran').write_text(__name__ + ' ' + sys.argv[1])"
    )
    process, _ = job.start([sys.executable, str(HERE / "bare.py"), "-m", "mod", "x"], None)
    assert process.wait(20) == 0, job.output()
    assert (job.root / "ran").read_text() == "__main__ x"


def test_several_threads_mean_workers_are_executed_afresh(job):
    (job.root / "threads.py").write_text(
        "import sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "from pitcrew_torch import run\n"
        "sys.exit(run.main(warm_up=lambda preload: ('', True)))\n"
    )
    script = str(HERE / "worker_script.py")
    process, _ = job.start([sys.executable, str(job.root / "threads.py"), "--nproc-per-node=2", script, "a"], None)
    assert process.wait(90) == 0, job.output()
    assert "executed afresh" in job.output() and "2 threads" in job.output()
    assert json.loads((job.root / "said-0-1.json").read_text())["argv"] == [script, "a"]


def test_an_agent_that_starts_nothing_is_not_waited_for_without_end(bare):
    process, pod, _ = bare(PITCREW_AGENT_WAIT=30, PITCREW_PLAN_WAIT=0.5)
    line = pod.launcher()
    line.send("wait")
    line.expect("state")
    assert process.wait(20) == 1  # its connection is still open


def test_a_word_of_the_agent_renews_the_wait_for_its_plan(bare):
    process, pod, said = bare(PITCREW_AGENT_WAIT=30, PITCREW_PLAN_WAIT=1)
    line = pod.launcher()
    for _ in range(4):
        line.send("wait")
        time.sleep(0.5)
    assert process.poll() is None
    line.send("start", attempt=0, **START)
    said(0)


def test_alone_while_the_workers_are_still_ending_starts_an_attempt(bare):
    _, pod, said = bare("sleep=600")
    line = pod.launcher()
    said(0)
    line.raw(b'{"t":"wait"}\n{"t":"alone"}\n')
    said(1)


def test_an_agent_that_leaves_while_the_workers_are_still_ending_does_not_hold_the_launcher(bare):
    _, pod, said = bare("sleep=600", PITCREW_HEAL_WAIT=0.3)
    line = pod.launcher()
    said(0)
    line.send("stop", attempt=5)
    line.close()
    said(5)


def test_an_agent_that_heals_nothing_says_so_after_the_failure_and_the_wait_ends(bare):
    process, pod, _ = bare("sleep=0.3", "exit=7")
    line = pod.launcher()
    line.expect("state", state="failed")
    line.send("alone", heal_wait_s=0)
    assert process.wait(20) == 1


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_worker_that_cannot_be_started_is_a_failed_attempt(job, restarts):
    """The second fork of each attempt fails, as with a limit on processes."""
    (job.root / "limited.py").write_text(
        "import os, sys\n"
        "from pitcrew_torch import run\n"
        "fork, count = os.fork, [0]\n"
        "def limited():\n"
        "    count[0] += 1\n"
        "    if count[0] % 2 == 0: raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "    return fork()\n"
        "os.fork = limited\n"
        "sys.exit(run.main(warm_up=lambda preload: ('', True)))\n"
    )
    argv = [str(job.root / "limited.py"), "--nproc-per-node=2", "--max-restarts=%d" % restarts]
    process, _ = job.start([sys.executable, *argv, str(HERE / "worker_script.py"), "sleep=600"], None)
    assert process.wait(20) == 1, job.output()
    assert job.output().count("a worker could not be started") == restarts + 1


def test_the_environment_turns_on_what_torchrun_turns_on(bare):
    process, _, said = bare(pod=None, flags=["--signals-to-handle=SIGTERM"])
    assert process.wait(20) == 0
    about = said(0)
    assert about["TORCHELASTIC_USE_AGENT_STORE"] == "False" and about["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM"
    assert about["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"


def _child(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        children = f.read().split()
    return int(children[0]) if children else None


def _group(pgid):
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name) as f:
                    fields = f.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == pgid and fields[0] != "Z":
                found.append(int(name))
    return found
