"""What the hook costs a step on the training thread, measured with and without it in one run.

    python3 python/bench/bench_hook.py [--out bench/out/hook.json] [--steps 20000]

`us_per_step`: the time inside `step(loss)` itself, call by call, with the ring, the side thread and an agent connected.
`loop`: a loop of a small torch step (or of plain Python where there is no torch), in blocks that run in turn with and
without the hook. The median of the pairs' differences is what a user would see, with the quartiles beside it, because
on a busy machine it drowns in the noise of the steps themselves.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

from pitcrew_torch import wire  # noqa: E402
from pitcrew_torch.hook import Hook  # noqa: E402

BLOCK = 200  # steps
AIM_US = 5.0


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))]


def workload():
    """A step of a small model, and what it is called."""
    try:
        import torch
    except ImportError:
        return (lambda: sum(range(2000))), "plain Python, no torch here"
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(16, 32)

    def step():
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, "torch %s, a two-layer model on the CPU" % torch.__version__


def calls(hook, steps):
    """Microseconds of each call of step(loss), less what reading the clock twice takes."""
    clock = time.perf_counter_ns
    empty, taken = [], []
    for _ in range(steps):
        began = clock()
        empty.append(clock() - began)
    for _ in range(steps):
        began = clock()
        hook.step(0.25)
        taken.append(clock() - began)
    floor = statistics.median(empty)
    return [max(0, t - floor) / 1e3 for t in taken]


def blocks(hook, work, count):
    """Microseconds a step, block by block, without and with the hook in turn."""
    without, with_ = [], []
    for n in range(2 * count):
        began = time.perf_counter_ns()
        if n % 2:
            for _ in range(BLOCK):
                hook.step(work())
        else:
            for _ in range(BLOCK):
                work()
        (with_ if n % 2 else without).append((time.perf_counter_ns() - began) / BLOCK / 1e3)
    return without, with_


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(ROOT, "bench", "out", "hook.json"))
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["PITCREW_DIR"] = directory
        hook = Hook(torch_version="bench")
        agent = wire.connect(os.path.join(directory, "local-0.sock"))
        agent.recv(65536)
        work, what = workload()
        for _ in range(1000):
            hook.step(work())
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        taken = calls(hook, options.steps)
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
        without, with_ = blocks(hook, work, max(10, options.steps // 2 // BLOCK))
        hook.close()
        agent.close()
    pairs = [b - a for a, b in zip(without, with_)]
    result = {
        "us_per_step": {
            "p50": round(percentile(taken, 50), 3),
            "p95": round(percentile(taken, 95), 3),
            "p99": round(percentile(taken, 99), 3),
            "mean": round(statistics.fmean(taken), 3),
            "n": len(taken),
        },
        "loop": {
            "what": what,
            "without_us": round(statistics.median(without), 3),
            "with_us": round(statistics.median(with_), 3),
            "difference_us": {p: round(percentile(pairs, n), 3) for p, n in (("p25", 25), ("p50", 50), ("p75", 75))},
            "pairs_of_blocks": len(pairs),
            "steps_per_block": BLOCK,
        },
        "voluntary_switches_per_step": waits / len(taken),
        "aim_us": AIM_US,
        "ok": percentile(taken, 95) <= AIM_US,
        "machine": {"cpus": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
    }
    os.makedirs(os.path.dirname(options.out), exist_ok=True)
    with open(options.out, "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    print(json.dumps(result, indent=1))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
