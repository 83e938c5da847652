"""The hook in one process, without torch: it never raises, and works without an agent or a directory."""

import os
import socket
import stat
import subprocess
import sys
import threading
import time
import warnings

import pytest
from agent import Line, Pod, wait_until
from conftest import PYTHON

from pitcrew_torch.hook import Hook
from pitcrew_torch.identity import workload_of


@pytest.fixture
def hook(tmp_path):
    made = []

    def make(save_fn=None, load_fn=None, directory=tmp_path, **options):
        environ = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "PITCREW_ATTEMPT": "2"}
        if directory is not None:
            environ["PITCREW_DIR"] = str(directory)
        h = Hook(save_fn, load_fn, environ=environ, **options)
        made.append(h)
        return h

    previous = sys.excepthook, sys.exit
    yield make
    for h in made:
        h.close()
    sys.excepthook, sys.exit = previous


def test_the_hello_says_who_it_is(hook, tmp_path):
    h = hook(lambda context: None, checkpoint_dir=str(tmp_path / "c"))
    h.step()
    who = {"rank": 1, "local_rank": 0, "world_size": 2, "attempt": 2, "pid": os.getpid(), "strategy": "custom"}
    state = {"step": 1, "section": "step", "can_save": True, "ckpt_dir": str(tmp_path / "c"), "save_p99_s": 0.0}
    assert Pod(tmp_path).rank(0).hello == {"t": "hello", "v": 1, "role": "rank", **who, **state}


def test_the_ring_follows_steps_and_sections(hook, tmp_path):
    h, pod = hook(), Pod(tmp_path)
    assert pod.ring(0)["section_name"] == "setup"
    began = time.monotonic_ns()
    h.step(0.5, grad_norm=1.5, samples=7)
    assert (pod.ring(0)["section_name"], pod.ring(0)["step"]) == ("step", 1)
    with h.section("eval"):
        assert (pod.ring(0)["section"], pod.ring(0)["section_name"]) == (3, "eval")
        with h.section("my own"):
            assert (pod.ring(0)["section"], pod.ring(0)["section_name"]) == (6, "my own")
        time.sleep(0.05)
    assert pod.ring(0)["section_name"] == "step"
    h.step(float("nan"))
    took = time.monotonic_ns() - began
    from pitcrew_torch import ring

    first, second = ring.read(pod.path("local-0.ring"))["records"]
    assert (first["loss"], first["grad_norm"], first["samples"], first["flags"]) == (0.5, 1.5, 7, 3)
    assert second["flags"] == 5  # a loss, and not finite
    assert second["duration_ns"] <= took - 50_000_000  # the evaluation is no part of the step
    beat = pod.ring(0)["heartbeat_ns"]
    wait_until(lambda: pod.ring(0)["heartbeat_ns"] > beat, 10, "a heartbeat")


def test_a_workload_is_told_whole_or_not_at_all(hook, tmp_path):
    hook(workload="model=theirs;seq=8")
    assert Pod(tmp_path).ring(0)["workload"] == "model=theirs;seq=8"
    ours = {"PITCREW_WORKLOAD": "model=ours"}
    assert workload_of(ours, None) == "model=ours" and workload_of(ours, "") == "" and workload_of({}, None) == ""
    with pytest.warns(RuntimeWarning, match="not told"):
        assert workload_of({}, "model=" + "é" * 61) == ""


def test_a_rank_that_found_no_checkpoint_says_so_too(hook, tmp_path):
    h = hook(load_fn=lambda context: None, checkpoint_dir=str(tmp_path / "none"))
    assert not Pod(tmp_path).ring(0)["flags"] & 8
    assert h.resume() == 0
    assert Pod(tmp_path).ring(0)["flags"] & 8 and Pod(tmp_path).ring(0)["resumed_step"] == 0


def test_a_missing_directory_costs_one_warning_and_nothing_else(hook, tmp_path):
    with pytest.warns(RuntimeWarning, match="cannot see this rank") as seen:
        h = hook(directory=tmp_path / "missing")
    assert len(seen) == 1
    h.step(1.0)
    assert h.step_count == 1


@pytest.mark.skipif(
    os.geteuid() == 0 and not os.path.exists("/proc/self/ns"), reason="cannot make a directory unwritable"
)
def test_a_directory_that_cannot_be_written_costs_one_warning(tmp_path):
    directory = tmp_path / "readonly"
    directory.mkdir()
    directory.chmod(stat.S_IRUSR | stat.S_IXUSR)
    code = (
        "import os, warnings\n"
        "from pitcrew_torch.hook import Hook\n"  # before it is anybody who may not read root's Python
        "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "seen = []; warnings.showwarning = lambda *a, **k: seen.append(a); warnings.simplefilter('always')\n"
        "h = Hook()\n"
        "for _ in range(3): h.step(1.0)\n"
        "assert h.step_count == 3 and len(seen) == 1, seen\n"
        "print('fine')\n"
    )
    for parent in [directory, *directory.parents]:
        if str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    env = dict(os.environ, PITCREW_DIR=str(directory), PYTHONPATH=str(PYTHON))
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert out.stdout == "fine\n", out.stderr


def test_nothing_a_user_passes_makes_it_raise(hook, tmp_path):
    h = hook(lambda context: 1 / 0, checkpoint_dir="/proc/nowhere", checkpoint_every=1)

    class Hostile:
        device = property(lambda self: 1 / 0)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        h.step(Hostile())
        h.step("not a number")
        h.step(grad_norm=object())
        h.step(1.0)  # and the periodic save fails
        with h.section(None):
            pass
        with h.section(object()):
            pass
        wait_until(lambda: seen, 5, "the warning, which is not in training's way")
    assert len(seen) == 1  # one; the rest is in the ring
    assert Pod(tmp_path).ring(0)["last_error"]


def test_what_the_user_raises_inside_a_section_passes_through(hook, tmp_path):
    h = hook()
    with pytest.raises(KeyError), h.section("eval"):
        raise KeyError("mine")
    assert Pod(tmp_path).ring(0)["section_name"] == "setup"


def test_agents_come_and_go_and_nonsense_costs_only_the_connection(hook, tmp_path):
    h, pod = hook(), Pod(tmp_path)
    for n in range(5):
        line = pod.rank(0)
        line.send("ping")
        assert line.expect("pong")["step"] == 0
        if n % 2:
            line.close()
    line.raw(b'\xff\xfe\n{"t":7}\n[]\n"x"\n{"t":"no such"}\n{"t":"arm"}\n{"t":"manifest"}\n' + b"[" * 5000 + b"\n")
    line.send("ping")
    assert line.expect("pong")
    line.send("abort", attempt=99, reason="not mine")
    line.send("ping")
    assert line.expect("pong")
    bad = pod.rank(0)
    try:
        for _ in range(80):
            bad.raw(b"x" * 65536)
    except OSError:
        pass
    assert bad.closed()
    assert pod.rank(0).hello["rank"] == 1
    h.step()


def test_an_agent_that_does_not_read_is_dropped_and_blocks_nobody(hook, tmp_path):
    h, pod = hook(), Pod(tmp_path)
    line = pod.rank(0)
    began = time.monotonic()
    for _ in range(40):
        h._say({"t": "error", "error": "x" * 60_000})
    assert time.monotonic() - began < 1
    wait_until(lambda: not h._side._server.connections, 5, "the drop")
    assert pod.rank(0).hello
    assert line.closed()


def test_a_forked_child_holds_no_connection(hook, tmp_path):
    """As a data loader does: when the rank dies, the agent must see the socket close though the child lives on."""
    code = (
        "import os, sys, time\n"
        "from pitcrew_torch.hook import Hook\n"
        "h = Hook(); h.step()\n"
        "sys.stdin.readline()\n"
        "if os.fork() == 0: time.sleep(60); os._exit(0)\n"
        "print('forked', flush=True); time.sleep(60)\n"
    )
    env = dict(os.environ, PITCREW_DIR=str(tmp_path), PYTHONPATH=str(PYTHON))
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    )
    try:
        line = Pod(tmp_path).rank(0)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"forked\n"
        process.kill()
        assert line.closed(timeout=3)
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_a_forked_child_that_goes_on_training_leaves_its_parents_ring_alone(tmp_path):
    code = (
        "import os\n"
        "from pitcrew_torch.hook import Hook\n"
        "h = Hook(); h.step()\n"
        "if os.fork() == 0:\n"
        "    for _ in range(5): h.step(0.5)\n"
        "    with h.section('eval'): h.trouble('mine')\n"
        "    h.close(); os._exit(0)\n"
        "os.wait(); h.step(); h._side.flush(1); os._exit(0)\n"
    )
    env = dict(os.environ, PITCREW_DIR=str(tmp_path), PYTHONPATH=str(PYTHON))
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=env, check=True)
    header = Pod(tmp_path).ring(0)
    assert (header["step"], header["records"], header["section_name"], header["last_error"]) == (2, 2, "step", "")


@pytest.mark.parametrize(
    ("code", "exit_", "error", "status"),
    [
        ("pass", 1, "", 0),
        ("sys.exit(0)", 1, "", 0),
        ("sys.exit(3)", 2, "exit code 3", 3),
        ("sys.exit('broken')", 2, "exit code 1", 1),
        ("try: sys.exit(3)\nexcept SystemExit: h.step()", 1, "", 0),
        ("t = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()", 1, "", 0),
        ("raise RuntimeError('first\\nsecond')", 2, "RuntimeError: first", 1),
        ("h.close(); h.close(); h.step()", 1, "", 0),
    ],
)
def test_how_a_process_ended_is_in_its_ring(tmp_path, code, exit_, error, status):
    env = dict(os.environ, PITCREW_DIR=str(tmp_path), PYTHONPATH=str(PYTHON))
    script = "import sys, threading\nfrom pitcrew_torch.hook import Hook\nh = Hook()\n" + code
    out = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    header = Pod(tmp_path).ring(0)
    assert (header["exit"], header["last_error"], out.returncode) == (exit_, error, status), out.stderr


def test_a_directory_with_a_very_long_path_works(hook, tmp_path):
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    hook(directory=deep)
    assert Pod(deep).rank(0).hello["rank"] == 1


def test_a_socket_left_by_an_earlier_process_is_replaced(hook, tmp_path):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "local-0.sock"))
    left.close()
    hook()
    assert Line(str(tmp_path / "local-0.sock")).hello["rank"] == 1


def test_without_pitcrew_dir_there_is_no_thread_and_periodic_checkpoints_go_on(hook, tmp_path):
    def save(context):
        with context.open("rank-%d.state.pt" % context.rank) as f:
            f.write(b"x")

    before = threading.active_count()
    h = hook(directory=None)
    h.step()
    assert threading.active_count() == before
    h = hook(save, directory=None, checkpoint_dir=str(tmp_path / "c"), checkpoint_every=2)
    for _ in range(5):
        h.step()
    assert h._saver.wait(5)
    assert sorted(os.listdir(tmp_path / "c")) == [".pitcrew", "step-2.attempt-2", "step-4.attempt-2"]
    assert "rank-1.done.json" in os.listdir(tmp_path / "c" / "step-4.attempt-2")
