"""Real processes for the tests: launchers and torchrun with the sandbox's training job."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Where a pod's emptyDir is: in memory. test_ringcopy.py has the rings that are not.
if shutil.disk_usage("/dev/shm").free > 1 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

sys.path.insert(0, os.path.dirname(__file__))

from agent import Pod, wait_until

import pitcrew_torch.hook

PYTHON = Path(__file__).resolve().parent.parent
TRAINER = PYTHON.parent / "sandbox" / "trainer"


class Job:
    """Launchers (pods) of one job. Everything it started is ended with the test."""

    def __init__(self, tmp_path):
        self.root = tmp_path
        self.checkpoints = tmp_path / "ckpt"
        self.logs = tmp_path / "log"
        self._processes = []

    def environment(self, pod, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PITCREW_", "PET_", "OMP_"))}
        env.update(
            PYTHONPATH=str(PYTHON),
            GLOO_SOCKET_IFNAME="lo",
            CKPT_DIR=str(self.checkpoints),
            PITCREW_TRAIN_LOG=str(self.logs),
            STEP_SECONDS="0.02",
            CKPT_EVERY="20",
            PYTHONUNBUFFERED="1",
        )
        if pod is not None:
            pod_dir = self.root / pod
            pod_dir.mkdir(exist_ok=True)
            env["PITCREW_DIR"] = str(pod_dir)
        env.update({k: str(v) for k, v in more.items()})
        return env

    def start(self, argv, pod="pod-0", **env):
        out = open(self.root / ("%s.%d.out" % (pod, len(self._processes))), "wb")
        process = subprocess.Popen(
            argv, env=self.environment(pod, **env), stdout=out, stderr=subprocess.STDOUT, cwd=self.root, process_group=0
        )
        out.close()
        process.out = Path(out.name)
        self._processes.append(process)
        return process, Pod(self.root / (pod or "none"))

    def launch(self, *flags, script=TRAINER / "train.py", pod="pod-0", **env):
        return self.start([sys.executable, "-m", "pitcrew_torch.run", *map(str, flags), str(script)], pod, **env)

    def saved(self):
        """The step of the newest checkpoint that is complete, 0 for none. A step's end only asks for one."""
        return max(
            (int(p.parent.name[5:].split(".")[0]) for p in self.checkpoints.glob("step-*/MANIFEST.json")), default=0
        )

    def steps(self, rank):
        """The rank's log as [(step, loss, attempt)]."""
        lines = (self.logs / ("rank-%d.log" % rank)).read_text().splitlines()
        return [(int(s), loss, int(a)) for s, loss, a, _, _ in (line.split() for line in lines)]

    def output(self):
        return "\n".join("%s:\n%s" % (p.out.name, p.out.read_text(errors="replace")) for p in self._processes)

    def end(self):
        for process in self._processes:
            for number in (signal.SIGKILL, signal.SIGCONT):
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    pass
            process.wait()


def two_ranks(tmp_path, code, **more):
    """Two processes that run the code as ranks 0 and 1 of a pod, and meet by the file $STORE."""
    ranks = []
    for rank in range(2):
        env = dict(
            os.environ, PITCREW_DIR=str(tmp_path), PYTHONPATH=str(PYTHON), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
            STORE=str(tmp_path / "store"), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", **more,
        )  # fmt: skip
        argv = [sys.executable, "-c", code]
        ranks.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return ranks


def outputs(ranks):
    """What the ranks said, once both have ended well."""
    try:
        said = [rank.communicate(timeout=120) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], said
        return [out for out, _ in said]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.fixture(autouse=True)
def left(monkeypatch):
    """Exit codes with which hooks would have ended this process. A hook whose claim a later one in the same test takes
    over hears of it from its heartbeat's thread, at any moment, and ends its process: here, the whole test run."""
    codes = []
    monkeypatch.setattr(pitcrew_torch.hook, "leave", lambda code=pitcrew_torch.hook.LEFT: codes.append(code))
    return codes


@pytest.fixture
def job(tmp_path, request):
    j = Job(tmp_path)
    yield j
    j.end()
    report = getattr(request.node, "report", None)
    if report is not None and report.failed:
        print(j.output())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call":
        item.report = outcome.get_result()


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """Losses by step of ranks 0 and 1 of a run that nothing happened to."""
    j = Job(tmp_path_factory.mktemp("uninterrupted"))
    try:
        process, _ = j.launch(
            "--nproc-per-node=2", "--standalone", pod=None, STEP_SECONDS=0, TOTAL_STEPS=400, CKPT_EVERY=0
        )
        assert process.wait(60) == 0, j.output()
        return [{step: loss for step, loss, _ in j.steps(rank)} for rank in (0, 1)]
    finally:
        j.end()


__all__ = ["TRAINER", "Job", "outputs", "two_ranks", "wait_until"]
