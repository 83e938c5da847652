"""The GPU check without a GPU: its dry run, its runner, and its readers on captured and made-up answers."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from gpucheck import DRY, GPU, agent, bundle, devicetimes, figures, host, nvml, plan, runner, simulated, smi, table
from gpucheck import __main__ as command

ROOT = Path(__file__).resolve().parent.parent.parent
ABOUT = {
    "when": "2026-11-22T00:00:00Z", "gpu": [], "driver": None, "torch": "2.0", "cuda_of_torch": None, "nccl": None,
    "usable": False, "libdcgm": None, "python": "3", "kernel": "6", "cpus": 2, "load": 0.0, "missing": ["a GPU"],
}  # fmt: skip


def environment():
    return dict(os.environ, PYTHONPATH=str(ROOT / "python"))


# ---- the dry run


def test_the_dry_run_measures_a_cpu_twin_of_everything_and_lists_what_is_missing(tmp_path):
    if not os.access(ROOT / agent.BINARY, os.X_OK):
        pytest.skip("needs bin/: make build")
    out = tmp_path / "dry.json"
    argv = [sys.executable, "-m", "gpucheck", "--dry", "--jobs", "3", "--out", str(out)]
    env = dict(environment(), CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    whole = json.loads(out.read_text())
    assert whole["label"] == DRY
    assert {r["name"]: r["status"] for r in whole["results"]} == {m.name: runner.OK for m in plan.MEASUREMENTS}
    assert any(text.startswith("a GPU that torch can use") for text in whole["host"]["missing"])
    assert all("  missing: " + text in done.stdout for text in whole["host"]["missing"])
    taken = [f for r in whole["results"] for f in r["figures"]]
    assert len(taken) > 30 and all(f["label"] == DRY and f["n"] and f["unit"] for f in taken)
    assert all(f["least"] <= f["median"] <= f["p95"] <= f["most"] for f in taken)
    page = (tmp_path / "dry.md").read_text()
    assert page.splitlines()[0] == "# GPU check (cpu dry run: these are not figures of a GPU)"
    assert page.count("| %s |\n" % DRY) >= len(taken)


def test_what_the_host_lacks_is_listed_with_its_remedy(monkeypatch, tmp_path):
    def missing(*_):
        raise figures.Missing("is not here")

    monkeypatch.setattr(host, "probe", lambda: {"torch": None, "why": "No module named 'torch'"})
    monkeypatch.setattr(host.smi, "gpus", missing)
    monkeypatch.setattr(host.nvml, "load", missing)
    monkeypatch.setattr(host.nodeview, "find_dcgm", lambda: None)
    monkeypatch.setattr(host.os, "access", lambda *_: False)
    monkeypatch.setattr(host, "GPUS", str(tmp_path / "none"))
    found = host.facts(str(tmp_path))
    assert not found["usable"] and len(found["missing"]) == 7
    for word in ("torch: No module", "GPU_PYTHON", "is not here", "/dev/kmsg", "libdcgm.so.4", "make build"):
        assert any(word in text for text in found["missing"]), word


def test_a_driver_that_hangs_at_the_first_call_does_not_hang_the_check(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    began = time.monotonic()
    assert "did not answer within 0.5 s" in host.probe(str(python), limit=0.5)["why"]
    assert time.monotonic() - began < 10


def test_a_dry_run_does_not_overwrite_figures_of_a_gpu(monkeypatch, tmp_path, capsys):
    out = tmp_path / "gpu-check.json"
    out.write_text(json.dumps({"label": GPU}))
    monkeypatch.setattr(command.host, "facts", lambda root: ABOUT)
    assert command.main(["--dry", "--out", str(out)]) == 2
    assert json.loads(out.read_text()) == {"label": GPU} and "pass another --out" in capsys.readouterr().out


# ---- the runner

FIGURE = '{"kind": "figure", "label": "x", "name": "f", "unit": "s", "n": 1, "median": 1, "p95": 1}'
WRONG = '{"kind": "check", "label": "x", "name": "pids", "expected": [7], "got": [], "ok": false}'
SAYS = "import os, signal, sys, time\nopen(sys.argv[sys.argv.index('--report') + 1], 'a').write(%r + chr(10))\n"

# what the measurement does, its status, a part of its reason, how many figures are kept
ENDS = {
    "ends well": (SAYS % FIGURE, runner.OK, "", 1),
    "raises": (SAYS % FIGURE + "raise RuntimeError('CUDA error: no')", runner.FAILED, "CUDA error: no", 1),
    "crashes": (SAYS % FIGURE + "os.kill(os.getpid(), signal.SIGSEGV)", runner.FAILED, "SIGSEGV", 1),
    "hangs": (SAYS % FIGURE + "time.sleep(600)", runner.TIMED_OUT, "did not end within", 1),
    "is deaf": (
        SAYS % FIGURE + "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)", runner.TIMED_OUT, "", 1,
    ),
    "cuts its last line": (SAYS % FIGURE + SAYS % '{"kind": "fig' + "time.sleep(600)", runner.TIMED_OUT, "", 1),
    "lacks something": ("print('install DCGM'); raise SystemExit(3)", runner.MISSING, "install DCGM", 0),
    "reports nothing": ("", runner.FAILED, "reported nothing", 0),
    "disagrees": (SAYS % WRONG, runner.FAILED, "pids: expected [7], got []", 0),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDS)
def test_a_measurement_that_fails_or_hangs_is_reported_with_its_reason(tmp_path, monkeypatch, what):
    code, status, reason, kept = ENDS[what]
    monkeypatch.setattr(runner, "LEAST", 0.1)
    limit = 3.0 if status == runner.TIMED_OUT else 60.0
    measurement = runner.Measurement(what, what, limit, "none")
    result = runner.run(measurement, [sys.executable, "-c", code], environment(), str(tmp_path), 100)
    assert result["status"] == status and reason in result["reason"], result
    assert len(result["figures"]) == kept and "left_behind" not in result


def test_the_rest_goes_on_after_a_measurement_that_hangs(monkeypatch, tmp_path, capsys):
    real, names = runner.run, [m.name for m in plan.MEASUREMENTS[:3]]
    codes = dict(zip(names, ("raise ValueError('broken')", "import time; time.sleep(600)", SAYS % FIGURE)))

    def run(measurement, argv, env, work, left):
        argv = [sys.executable, "-c", codes[measurement.name]]
        return real(runner.Measurement(measurement.name, "", 5.0, ""), argv, env, work, left)

    monkeypatch.setattr(command.runner, "run", run)
    monkeypatch.setattr(command.host, "facts", lambda root: ABOUT)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    out = tmp_path / "out.json"
    chosen = [word for name in names for word in ("--only", name)]
    assert command.main([*chosen, "--dry", "--out", str(out)]) == 1
    results = json.loads(out.read_text())["results"]
    assert [r["status"] for r in results] == [runner.FAILED, runner.TIMED_OUT, runner.OK]
    assert "broken" in results[0]["reason"]
    lines = capsys.readouterr().out.splitlines()
    assert [n for n in names if any(line.startswith("[") and n + ":" in line for line in lines)] == names


def test_a_measurement_that_hangs_leaves_no_process_of_its_session(tmp_path, monkeypatch):
    child = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(600)"
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', %r]); time.sleep(600)" % child
    monkeypatch.setattr(runner, "LEAST", 0.1)
    measurement = runner.Measurement("hangs", "", 4.0, "")
    result = runner.run(measurement, [sys.executable, "-c", code], environment(), str(tmp_path), 100)
    assert result["status"] == runner.TIMED_OUT
    pid = int(result["log"].split()[0])
    stat = Path("/proc/%d/stat" % pid)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_measurement_that_would_get_no_time_is_not_run(tmp_path):
    measurement = runner.Measurement("late", "", 30.0, "")
    result = runner.run(measurement, ["/does/not/exist"], {}, str(tmp_path), left=1.0)
    assert result["status"] == runner.NOT_RUN and "no time left" in result["reason"]


def test_whoever_ends_the_check_ends_what_it_measures(tmp_path):
    if not os.access(ROOT / agent.BINARY, os.X_OK):
        pytest.skip("needs bin/: make build")
    argv = [sys.executable, "-m", "gpucheck", "--dry", "--only", "hang", "--out", str(tmp_path / "out.json")]
    check = subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, text=True)
    for line in check.stdout:
        if line.startswith("["):
            break
    inside = figures.wait_until(lambda: children(check.pid), 30, "the measurement's process")
    check.send_signal(signal.SIGTERM)
    assert check.wait(30) == 130
    figures.wait_until(lambda: not runner.session(inside[0]), 10, "the measurement's session to be empty")


def test_a_signal_while_a_measurement_is_being_started_ends_it(tmp_path, monkeypatch):
    """Seen: the signal came between fork and the note of the child, and the measurement went on alone."""
    started, popen = [], subprocess.Popen

    def start(*args, **options):
        started.append(popen(*args, **options))
        runner.end_all()  # as the signal's handler
        return started[0]

    def leave(code):  # as os._exit: what comes after does not run
        raise SystemExit(code)

    monkeypatch.setattr(runner.subprocess, "Popen", start)
    monkeypatch.setattr(runner.os, "_exit", leave)
    monkeypatch.setattr(runner.START, "ended", False)
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(SystemExit, match="130"):
        runner.run(plan.MEASUREMENTS[0], sleep, {}, str(tmp_path), left=60.0)
    try:
        assert started[0].wait(5) == -signal.SIGKILL
    finally:
        started[0].kill()


def children(pid):
    tasks = Path("/proc/%d/task" % pid).glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


def test_the_limits_leave_the_whole_under_eight_minutes_though_everything_hangs():
    assert sum(m.limit + runner.GRACE for m in plan.MEASUREMENTS) <= plan.WHOLE < 480
    assert len({m.name for m in plan.MEASUREMENTS}) == len(plan.MEASUREMENTS)


# ---- nvidia-smi

ROW = (
    "0, GPU-1, NVIDIA H100 80GB HBM3, 580.159.04, 00000000:1A:00.0, 81559, 4, Enabled, Disabled, "
    "0x0000000000000001, 31, 70.1"
)
GPUS = {
    "an H100": (ROW, {"ecc.mode.current": True, "mig.mode.current": False, smi.REASONS: 1, "memory.total": 81559.0}),
    "a name with its capitals": (ROW, {"name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-1", "power.draw": 70.1}),
    "no ECC, no MIG": (
        ROW.replace("Enabled", "[N/A]").replace("Disabled", "N/A"),
        {"ecc.mode.current": None, "mig.mode.current": None},
    ),
    "an old driver's words": (
        ROW.replace("70.1", "[Not Supported]").replace("31,", "[Unknown Error],"),
        {"power.draw": None, "temperature.gpu": None},
    ),
    "no permission": (ROW.replace("81559, 4", "81559, [Insufficient Permissions]"), {"memory.used": None}),
}  # fmt: skip


@pytest.mark.parametrize("what", GPUS)
def test_the_cells_of_nvidia_smi_become_values_and_what_it_does_not_know_becomes_none(what):
    text, expected = GPUS[what]
    (row,) = smi.parse(text + "\n", smi.GPU_FIELDS)
    assert {field: row[field] for field in expected} == expected


TABLES = {
    "two GPUs": (ROW + "\n" + ROW, smi.GPU_FIELDS, 2),
    "blank lines": ("\n\n", smi.GPU_FIELDS, 0),
    "no processes": ("", smi.PROCESS_FIELDS, 0),
    "a sentence for none": ("No running processes found\n", smi.PROCESS_FIELDS, 0),
    "processes": ("GPU-1, 7, 512\nGPU-1, 8, [N/A]\n", smi.PROCESS_FIELDS, 2),
}


@pytest.mark.parametrize("what", TABLES)
def test_nvidia_smi_lists_as_many_rows_as_there_are(what):
    text, fields, rows = TABLES[what]
    assert len(smi.parse(text, fields)) == rows


@pytest.mark.parametrize(
    "text",
    ["GPU-1, 7", "Failed to initialize NVML, x, y, z", "GPU-1, seven, 512"],
    ids=["a cell too few", "an error's text", "a pid that is no number"],
)
def test_what_nvidia_smi_cannot_have_meant_is_an_error(text):
    with pytest.raises(ValueError, match="nvidia-smi"):
        smi.parse(text, smi.PROCESS_FIELDS)


def fake_smi(tmp_path, body):
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return str(path)


def test_a_driver_that_dropped_the_old_name_of_the_throttle_reasons_is_asked_by_the_new_one(tmp_path):
    body = 'case "$1" in *throttle*) echo "not a valid field"; exit 2;; *event_reasons*) echo "%s";; esac\n' % ROW
    assert smi.gpus(fake_smi(tmp_path, body))[0][smi.REASONS] == 1


def test_an_error_of_nvidia_smi_is_told_with_its_text(tmp_path):
    with pytest.raises(RuntimeError, match="driver/library version mismatch"):
        smi.gpus(fake_smi(tmp_path, "echo 'NVML: driver/library version mismatch'; exit 18\n"))


# ---- NVML, the agent, the profiler


def test_nvml_is_read_by_its_c_calls_and_what_a_card_lacks_is_none():
    card = {"ecc": True, "mig": False, "throttle": simulated.THROTTLE, "processes": [simulated.PID]}
    assert nvml.read(simulated.Library()) == {simulated.UUID: card}

    class Lesser(simulated.Library):
        def nvmlDeviceGetMigMode(self, *_):
            return nvml.NOT_SUPPORTED

    assert nvml.read(Lesser())[simulated.UUID]["mig"] is None

    class Lost(simulated.Library):
        def nvmlDeviceGetEccMode(self, *_):
            return 15

    with pytest.raises(nvml.Error, match="nvmlDeviceGetEccMode failed with NVML code 15"):
        nvml.read(Lost())


def test_the_agents_word_on_processes_is_read_from_its_log():
    event = "LogRecord #%d\nEventName: pitcrew.gpu.process%s\n  -> process.pid: Int(%d)\n  -> hw.id: Str(GPU-1)\n"
    text = event % (0, "", 7) + event % (1, "", 8) + event % (0, "_ended", 7)
    assert agent.processes_in(text) == {8: "GPU-1"}


def test_series_are_read_from_the_endpoints_text():
    text = '# TYPE a gauge\na{UUID="GPU-1",m="x\\"y"} 4\nab{UUID="GPU-1"} 5\na{UUID="GPU-2"} 1e3\n'
    assert agent.series(text, "a") == [({"UUID": "GPU-1", "m": 'x\\"y'}, 4.0), ({"UUID": "GPU-2"}, 1000.0)]


def trace(steps, late=0.0):
    """A profiler's trace: each step's three phases with two kernels each, `late` microseconds after their launch."""
    events = []
    for n in range(1, steps + 1):
        for place, phase in enumerate(devicetimes.PHASES):
            at = n * 10_000 + place * 1000
            name = "check/%d/%s" % (n, phase)
            events.append({"ph": "X", "cat": "user_annotation", "name": name, "ts": at, "dur": 500})
            events.append({"ph": "X", "cat": "gpu_user_annotation", "name": name, "ts": at + 90, "dur": 9})
            for k in (0, 1):
                args, issued = {"correlation": n * 100 + place * 10 + k}, at + 10 + k
                begun = issued + late * n + k * 400
                events.append(
                    {"ph": "X", "cat": "cuda_runtime", "name": "launch", "ts": issued, "dur": 1, "args": args}
                )
                events.append({"ph": "X", "cat": "kernel", "name": "gemm", "ts": begun, "dur": 400, "args": args})
    return events


def compared(tmp_path, records, events):
    report, path = None, tmp_path / "report"
    context = runner.Context(GPU, "cuda", "", "", "", False, 1.0)
    report = figures.Report(str(path), GPU)
    devicetimes.compare(context, report, devicetimes.by_profiler(events), records, "")
    return figures.read(str(path))


def record(n, microseconds, launch=0):
    phases = {phase + "_ns": int(microseconds * 1e3) for phase in devicetimes.PHASES}
    return dict(phases, step=n, launch_ns=int(launch * 1e3) or 1)


def test_kernels_count_for_the_phase_that_launched_them_and_agree_with_the_hook(tmp_path):
    found = compared(tmp_path, {n: record(n, 810, 5 * n) for n in range(1, 9)}, trace(8, late=5.0))
    assert all(c["ok"] for c in found["check"]), found["check"]
    medians = {f["name"]: f["median"] for f in found["figure"]}
    assert medians["forward by the profiler"] == 801.0 and medians["forward by the hook"] == 810.0
    assert medians["launch latency, difference between the two"] == pytest.approx(0.0)


def test_device_times_that_the_profiler_does_not_confirm_fail_the_check(tmp_path):
    found = compared(tmp_path, {n: record(n, 1200) for n in range(1, 9)}, trace(8))
    assert {c["name"] for c in found["check"] if not c["ok"]} == {p + ", hook / profiler" for p in devicetimes.PHASES}


class FakeLoad:
    """A device that is busy for 20 ms after each step: whoever waits for it takes that long."""

    def __init__(self):
        self.until = 0.0

    def step(self, end):
        end(self)

    def wait(self):
        time.sleep(max(0.0, self.until - time.monotonic()))

    item = wait

    def __mul__(self, _):
        return self


@pytest.mark.parametrize("waits", [False, True], ids=["step returns at once", "step waits for the device"])
def test_the_nan_watch_fails_where_step_waits_for_the_device(tmp_path, monkeypatch, waits):
    nanwatch = pytest.importorskip("gpucheck.nanwatch", exc_type=ImportError)
    load = FakeLoad()

    class Pitcrew:
        @staticmethod
        def step(loss):
            if waits:
                loss.wait()

    def watched(call):
        before = load.until = time.monotonic() + 0.01
        call()
        return int(time.monotonic() >= before)

    monkeypatch.setattr(nanwatch, "occupy", lambda: setattr(load, "until", time.monotonic() + 0.2))
    monkeypatch.setattr(nanwatch, "watched", watched)
    report = figures.Report(str(tmp_path / "report"), GPU)
    nanwatch.never_waits(report, load, Pitcrew, 2)
    checks = {c["name"]: c["ok"] for c in figures.read(str(tmp_path / "report"))["check"]}
    assert checks["every control, loss.item(), is seen to synchronize"]
    assert checks["synchronizing calls in step()"] is not waits
    assert checks["the longest step()"] is not waits


# ---- what is written, and what is carried


def test_a_figure_keeps_its_unit_n_median_and_p95(tmp_path):
    report = figures.Report(str(tmp_path / "r"), DRY)
    report.figure("x", "ms", range(1, 101))
    (line,) = figures.read(str(tmp_path / "r"))["figure"]
    assert (line["unit"], line["n"], line["median"], line["p95"], line["label"]) == ("ms", 100, 50.5, 96, DRY)
    with pytest.raises(ValueError):
        report.figure("none", "ms", [])


def test_a_table_of_a_gpu_names_driver_torch_and_gpu():
    about = dict(ABOUT, gpu=["NVIDIA H100 80GB HBM3"], driver="580.1", torch="2.11.0+cu130", missing=[])
    line = dict(figures.summary([1.0, 2.0]), name="hold", unit="s")
    page = table.markdown(GPU, about, [{"name": "m", "status": "ok", "seconds": 1.0, "figures": [line]}])
    for text in ("NVIDIA H100 80GB HBM3", "580.1", "2.11.0+cu130", "| m | hold | s | 2 | 1.5 | 2 | GPU |"):
        assert text in page
    assert DRY not in page


def test_the_bundle_fits_and_is_all_that_the_check_needs(tmp_path):
    if not os.access(ROOT / agent.BINARY, os.X_OK):
        pytest.skip("needs bin/: make build")
    archive = tmp_path / "bundle" / "gpu-check.tar.gz"
    size = bundle.pack(str(archive), level=1)
    assert size <= bundle.LIMIT
    there = tmp_path / "host"
    with tarfile.open(archive) as f:
        f.extractall(there)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    words = "--dry --only agent-processes --out %s" % (tmp_path / "out.json")
    argv = ["make", "-C", str(there), "gpu-check", "GPU_PYTHON=" + sys.executable, "ARGS=" + words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [r["status"] for r in results] == [runner.OK]


def test_a_bundle_above_the_limit_is_refused(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "Makefile").write_text("")
    for name in bundle.FILES[1:3]:
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / agent.BINARY).write_bytes(os.urandom(100_000))
    with pytest.raises(bundle.TooLarge):
        bundle.pack(str(tmp_path / "out.tar.gz"), root=str(tmp_path), limit=50_000)
    assert not (tmp_path / "out.tar.gz").exists()
