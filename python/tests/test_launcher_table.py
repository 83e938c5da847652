"""Whatever ends a worker, whenever: the launcher restarts or exits within a bound, as torchrun would.

Each row is a launcher of its own with real processes. All rows run side by side in a few threads, started by the first
test that asks for one. PITCREW_TEST_FULL=1 repeats every row five times.
"""

import concurrent.futures
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agent import Line, wait_until

HERE = Path(__file__).resolve().parent
BOUND = 20.0  # seconds for a row, on a busy machine; a launcher that hangs never ends
HEAL_WAIT = 0.4
FAILS = 2  # attempts that fail before one succeeds
START = {"node_rank": 0, "nnodes": 1, "master_addr": "127.0.0.1", "master_port": 1}

WORKERS = (1, 2, 8)
RESTARTS = (0, 3)
DEATHS = ("exit", "kill", "hang")
WHEN = ("startup", "midway", "end")
AGENTS = (
    "no-agent",
    "agent-heals",  # it stops the attempt and starts the next one
    "agent-is-silent",  # it is connected, and the wait for healing runs out
    "agent-started-and-is-silent",  # the same with an attempt that was the agent's
)
ROWS = list(itertools.product(WORKERS, RESTARTS, AGENTS, DEATHS, WHEN))


def expected(workers, restarts, agent, death, when):
    """(exit code, whether somebody has to end the job): torchrun does not see a hang that no other rank reports."""
    unseen = death == "hang" and (workers == 1 or when == "end")
    if agent == "agent-heals":
        return 0, False
    if unseen:
        return 1, True
    if agent == "agent-started-and-is-silent":
        return 1, False  # it is not the launcher's to restart
    return (0 if restarts >= FAILS else 1), False


def run_row(directory, workers, restarts, agent, death, when):
    directory.mkdir(parents=True)
    (directory / "pod").mkdir()
    mark = "PITCREW_TEST_ROW=%s" % directory
    code, ended_by_hand = expected(workers, restarts, agent, death, when)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PITCREW_", "PET_"))}
    env.update([mark.split("=", 1)], PYTHONPATH=str(HERE.parent), PITCREW_HEAL_WAIT=str(HEAL_WAIT))
    env.update(PITCREW_TERM_GRACE="0.2", PITCREW_AGENT_WAIT="30" if agent.startswith("agent") else "0")
    if agent != "no-agent":
        env["PITCREW_DIR"] = str(directory / "pod")
    argv = [sys.executable, str(HERE / "bare.py"), "--nproc-per-node=%d" % workers, "--max-restarts=%d" % restarts]
    argv += [str(HERE / "dying_worker.py"), death, when, str(FAILS), str(directory)]
    with open(directory / "out", "wb") as out:
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, process_group=0)
    started = dict(START, nproc=workers, world_size=workers)
    line = None
    try:
        if agent != "no-agent":
            line = Line(str(directory / "pod" / "launcher.sock"))
            if agent == "agent-started-and-is-silent":
                line.send("start", attempt=0, **started)
            else:
                line.send("alone", heal_wait_s=HEAL_WAIT if agent == "agent-is-silent" else 30)
        victim = workers - 1
        if agent == "agent-heals":
            for attempt in range(FAILS):
                wait_until((directory / ("dies-%d-%d" % (attempt, victim))).exists, BOUND, "a death")
                line.send("stop", attempt=attempt + 1)
                line.expect("state", state="stopped", timeout=BOUND)
                line.send("start", attempt=attempt + 1, **started)
        elif ended_by_hand:
            wait_until((directory / ("dies-0-%d" % victim)).exists, BOUND, "a hang")
            process.terminate()
        got = process.wait(BOUND)
        left = processes_with(mark)
        finished = len(list(directory.glob("finished-%d-*" % FAILS)))
        said = (directory / "out").read_text(errors="replace")
        assert got == code, "exit code %d, not %d\n%s" % (got, code, said)
        assert not left, "left behind: %s\n%s" % (left, said)
        assert finished == (workers if code == 0 else 0), "%d workers finished\n%s" % (finished, said)
    finally:
        process.kill()
        process.wait()
        if line is not None:
            line.close()
        for pid in processes_with(mark):
            os.kill(pid, signal.SIGKILL)


def processes_with(mark):
    """Pids, zombies left out, whose environment holds the mark."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % name, "rb") as f:
                if mark.encode() in f.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Every row's future: the first test waits for its own only."""
    root = tmp_path_factory.mktemp("rows")
    repeats = 5 if os.environ.get("PITCREW_TEST_FULL") else 1
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        yield {
            row: [pool.submit(run_row, root / ("%d" % i) / "-".join(map(str, row)), *row) for i in range(repeats)]
            for row in ROWS
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "%d-workers-%d-restarts-%s-%s-%s" % row)
def test_the_launcher_restarts_or_exits_as_torchrun_would_and_leaves_no_process(rows, row):
    for future in rows[row]:
        future.result()
