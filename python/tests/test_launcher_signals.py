"""The launcher honors SIGTERM and SIGINT from its first instruction to its last, also as PID 1."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent import wait_until
from test_launcher_table import processes_with

HERE = Path(__file__).resolve().parent
SLOW_TORCH = "import time\nopen('importing', 'w').close()\nfor _ in range(600): time.sleep(0.05)\n"
SLOW_FORKS = """
import os, sys, time
from pitcrew_torch import run
os.register_at_fork(before=lambda: (open('forking', 'w').close(), time.sleep(0.15)))
sys.exit(run.main(warm_up=lambda preload: ('', True)))
"""
WORKER = """
import os, signal, sys, time
def term(*_):
    open('term-' + os.environ['RANK'], 'w').close()
    sys.exit(0)
signal.signal(signal.SIGTERM, term)
open('up-' + os.environ['RANK'], 'w').close()
time.sleep(600)
"""


def in_new_pid_namespace(argv):
    return ["unshare", "--pid", "--fork", "--kill-child", *argv]


def can_unshare():
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(in_new_pid_namespace(["true"]), stderr=subprocess.DEVNULL).returncode == 0


needs_namespace = pytest.mark.skipif(not can_unshare(), reason="no right to make a PID namespace")


@pytest.fixture
def launch(tmp_path):
    """launch(argv, pid1): the process to wait for, and the launcher's pid. Nothing of it outlives the test."""
    (tmp_path / "worker.py").write_text(WORKER)
    mark = "PITCREW_TEST_ROW=%s" % tmp_path
    started = []

    def start(argv, pid1=False, **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PITCREW_", "PET_"))}
        clean.update([mark.split("=", 1)], PYTHONPATH="%s:%s" % (tmp_path, HERE.parent), PITCREW_TERM_GRACE="3", **env)
        argv = [sys.executable, *map(str, argv), "worker.py"]
        process = subprocess.Popen(
            in_new_pid_namespace(argv) if pid1 else argv, env=clean, cwd=tmp_path, stderr=open(tmp_path / "err", "wb")
        )
        started.append(process)
        if not pid1:
            return process, process.pid
        children = Path("/proc/%d/task/%d/children" % (process.pid, process.pid))
        return process, int(wait_until(lambda: children.read_text().split(), what="PID 1")[0])

    start.left = lambda: processes_with(mark)
    yield start
    for process in started:
        process.kill()
        process.wait()
    for pid in processes_with(mark):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("pid1", [False, pytest.param(True, marks=needs_namespace)], ids=["", "PID 1"])
def test_a_signal_while_torch_is_imported_ends_the_launcher_at_once(launch, tmp_path, pid1, number):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(SLOW_TORCH)
    process, pid = launch(["-m", "pitcrew_torch.run"], pid1)
    wait_until((tmp_path / "importing").exists, what="the import")
    os.kill(pid, number)
    assert process.wait(5) == 1
    assert not launch.left()


@pytest.mark.parametrize("pid1", [False, pytest.param(True, marks=needs_namespace)], ids=["", "PID 1"])
def test_a_signal_while_workers_are_being_started_reaches_all_of_them(launch, tmp_path, pid1):
    (tmp_path / "slow_forks.py").write_text(SLOW_FORKS)
    process, pid = launch(["slow_forks.py", "--nproc-per-node=6"], pid1)
    wait_until((tmp_path / "up-1").exists, what="the second worker")
    os.kill(pid, signal.SIGTERM)
    assert process.wait(10) == 1
    assert not launch.left()
    assert {p.name for p in tmp_path.glob("term-*")} == {"term-%s" % p.name[3:] for p in tmp_path.glob("up-*")}
    assert (tmp_path / "term-3").exists(), "workers that were started after the signal"


@needs_namespace
def test_as_pid_1_it_forwards_a_signal_and_ends(launch, tmp_path):
    process, pid = launch([HERE / "bare.py", "--nproc-per-node=2"], True)
    wait_until(lambda: len(list(tmp_path.glob("up-*"))) == 2, what="workers")
    os.kill(pid, signal.SIGTERM)
    assert process.wait(10) == 1
    assert len(list(tmp_path.glob("term-*"))) == 2 and not launch.left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_moment_ends_everything(launch, number):
    """From the interpreter's start, where the kernel still ends the process, to running workers."""
    codes = set()
    for delay in range(0, 400, 25):
        process, pid = launch([HERE / "bare.py", "--nproc-per-node=3"])
        time.sleep(delay / 1000)
        os.kill(pid, number)
        codes.add(process.wait(10))
        assert not launch.left(), "after a signal at %d ms" % delay
    assert codes <= {1, -number, 130} and 1 in codes  # 130: Python's own end by Ctrl-C


def test_a_second_signal_does_not_wait_for_the_workers(launch, tmp_path):
    (tmp_path / "worker.py").write_text(WORKER.replace("sys.exit(0)", "time.sleep(600)"))
    process, pid = launch([HERE / "bare.py"])
    wait_until((tmp_path / "up-0").exists, what="the worker")
    os.kill(pid, signal.SIGTERM)
    wait_until((tmp_path / "term-0").exists, what="the signal")
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    assert process.wait(10) == 1 and time.monotonic() - began < 2


def test_blocked_signals_and_an_ignored_sigchld_of_the_parent_are_undone(launch, tmp_path):
    """A parent may leave both to what it executes."""
    (tmp_path / "sets.py").write_text(
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
    )
    process, pid = launch(["sets.py", HERE / "bare.py"])
    wait_until((tmp_path / "up-0").exists, what="the worker")
    os.kill(pid, signal.SIGTERM)
    assert process.wait(10) == 1 and (tmp_path / "term-0").exists()


def test_under_nohup_a_hangup_ends_nothing(launch, tmp_path):
    (tmp_path / "sets.py").write_text(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
    )
    process, pid = launch(["sets.py", HERE / "bare.py"])
    wait_until((tmp_path / "up-0").exists, what="the worker")
    os.kill(pid, signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    os.kill(pid, signal.SIGTERM)
    assert process.wait(10) == 1


def test_other_signals_are_handled_where_they_are_named(launch, tmp_path):
    (tmp_path / "worker.py").write_text(WORKER.replace("SIGTERM, term", "SIGUSR1, term"))
    process, pid = launch([HERE / "bare.py", "--signals-to-handle=SIGTERM,SIGUSR1"])
    wait_until((tmp_path / "up-0").exists, what="the worker")
    os.kill(pid, signal.SIGUSR1)
    assert process.wait(10) == 1 and (tmp_path / "term-0").exists()
