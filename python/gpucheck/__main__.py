"""The command line of the GPU check."""

import argparse
import dataclasses
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from . import DRY, GPU, host, plan, runner, table

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = {GPU: "gpu-check.json", DRY: "gpu-check-dry-run.json"}


def arguments(argv):
    p = argparse.ArgumentParser(prog="python3 -m gpucheck", description="Measure Pitcrew's hook and agent on a GPU.")
    default = "bench/out/%s, without a GPU %s" % (OUT[GPU], OUT[DRY])
    p.add_argument("--out", help="the JSON file; the table is written beside it (%s)" % default)
    p.add_argument("--only", action="append", choices=[m.name for m in plan.MEASUREMENTS], help="may be repeated")
    p.add_argument("--dry", action="store_true", help="a dry run even if there is a GPU")
    p.add_argument("--jobs", type=int, default=1, help="measurements at once in a dry run; on a GPU always one")
    for name in ("--inside", "--report", "--limit", "--context"):
        p.add_argument(name, help=argparse.SUPPRESS)
    return p.parse_args(argv)


def main(argv=None):
    options = arguments(argv)
    if options.inside:
        module, _, function = plan.named(options.inside).module.partition(":")
        call = getattr(importlib.import_module("." + module, __package__), function)
        context = runner.Context(**json.loads(options.context))
        code = runner.inside(call, context, options.report, float(options.limit))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # nothing that a library does at its end may change the result
    return check(options)


def check(options):
    began = time.monotonic()
    about = host.facts(ROOT)
    label = GPU if about["usable"] and not options.dry else DRY
    out = os.path.abspath(options.out or os.path.join(ROOT, "bench", "out", OUT[label]))
    if label == DRY and holds_gpu_figures(out):
        print("gpu-check: %s holds figures of a GPU; a dry run does not overwrite them: pass another --out" % out)
        return 2
    slack = 1 if label == GPU else plan.DRY_SLACK
    say("gpu-check: %s" % (", ".join(about["gpu"]) if label == GPU else "no GPU is used: " + DRY))
    for text in about["missing"]:
        say("  missing: %s" % text)
    chosen = [m for m in plan.MEASUREMENTS if not options.only or m.name in options.only]
    results, lock = {}, threading.Lock()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, runner.end_all)

    def one(m):
        with lock:
            say("[%2d/%d] %s: %s (at most %g s)" % (chosen.index(m) + 1, len(chosen), m.name, m.what, m.limit * slack))
        result = measure(m, label, slack, plan.WHOLE * slack - (time.monotonic() - began))
        with lock:
            results[m.name] = result
            write(out, label, about, [results[c.name] for c in chosen if c.name in results], time.monotonic() - began)
            say("        %s: %s in %.1f s%s" % (m.name, result["status"], result["seconds"], table.reason(result)))

    with ThreadPoolExecutor(max_workers=max(1, options.jobs) if label == DRY else 1) as pool:
        for done in [pool.submit(one, m) for m in chosen]:
            done.result()
    print(table.markdown(label, about, [results[m.name] for m in chosen]))
    print("gpu-check: %s" % out)
    return 1 if any(r["status"] not in (runner.OK, runner.MISSING) for r in results.values()) else 0


def say(text):
    print(text, flush=True)


def measure(m, label, slack, left):
    memory = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
    work, fast = tempfile.mkdtemp(prefix="gpu-check-"), tempfile.mkdtemp(prefix="gpu-check-", dir=memory)
    device = "cuda" if label == GPU else "cpu"
    context = runner.Context(label, device, work, fast, ROOT, label == DRY, plan.PATIENCE * slack)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PITCREW_") or k == "PITCREW_DCGM_LIBRARY"}
    paths = [os.path.join(ROOT, "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env.update(PYTHONPATH=os.pathsep.join(paths), PYTHONUNBUFFERED="1")
    if label == DRY:
        env.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    argv = [sys.executable, "-m", "gpucheck", "--inside", m.name, "--context", json.dumps(dataclasses.asdict(context))]
    try:
        return runner.run(dataclasses.replace(m, limit=m.limit * slack), argv, env, work, left)
    finally:
        for path in (work, fast):
            shutil.rmtree(path, ignore_errors=True)


def holds_gpu_figures(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f).get("label") == GPU
    except (OSError, ValueError):
        return False


def write(out, label, about, results, seconds):
    """The JSON file and the table, replaced whole: whoever ends the check here loses nothing that was measured."""
    os.makedirs(os.path.dirname(out), exist_ok=True)
    whole = {"label": label, "host": about, "seconds": round(seconds, 1), "results": results}
    page = table.markdown(label, about, results)
    for path, text in ((out, json.dumps(whole, indent=1) + "\n"), (table.beside(out), page)):
        with open(path + ".tmp", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(path + ".tmp", path)


if __name__ == "__main__":
    sys.exit(main())
