"""What the hook costs a step on the training thread, measured with and without it in one run.

    python3 python/bench/bench_hook.py [--out bench/out/hook.json] [--steps 20000]

`us_per_step`: the time inside `step(loss)` itself, call by call, with the ring, the side thread and an agent connected.
`loop`: whole training steps (data loader, forward, backward, optimizer) of the smallest model, in blocks that run in
turn without the hook and with all that `attach` measures, as one of two ranks. It is the processor time of the training
thread. `least` is the difference between the least disturbed tenths of the blocks, which is what a step costs also on a
machine that is shared; the pairs' quartiles beside it tell how disturbed it was. Without torch a loop of plain Python
stands in.

`ok` is whether a whole step costs at most 5 microseconds (`least`), and `step` alone does so at its 95th percentile.
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

BLOCK = 50  # steps: short, so that some are not interrupted
AIM_US = 5.0


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))]


class Workload:
    """Steps to measure, with and without the hook, and what they are called."""

    def __init__(self):
        try:
            import torch
        except ImportError:
            self.what, self._torch = "plain Python, no torch here", None
            return
        self._torch = torch
        torch.set_num_threads(1)
        self.what = "torch %s, all phases, as rank 0 of 2: data loader, forward, backward, SGD of one layer" % (
            torch.__version__
        )
        self._model = torch.nn.Linear(4, 1)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._loader = torch.utils.data.DataLoader(_Batches(torch.ones(4)), batch_size=None)

    def hook(self):
        if self._torch is None:
            return Hook(torch_version="bench")
        import pitcrew_torch

        return pitcrew_torch.attach(self._model, self._optimizer, step_on="call")

    def run(self, hook):
        """One block; nanoseconds of this thread."""
        step = hook.step if hook is not None else lambda loss: None
        if self._torch is None:
            began = time.thread_time_ns()
            for _ in range(BLOCK):
                step(float(sum(range(2000))))
            return time.thread_time_ns() - began
        batches = iter(self._loader)
        model, optimizer = self._model, self._optimizer
        began = time.thread_time_ns()
        for _ in range(BLOCK):
            loss = model(next(batches))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step(loss.item())
        return time.thread_time_ns() - began


class _Batches:
    def __init__(self, batch):
        self._batch = batch

    def __len__(self):
        return BLOCK

    def __getitem__(self, _):
        return self._batch


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


def blocks(work, count):
    """Microseconds a step, block by block, without and with the hook in turn."""
    without, with_ = [], []
    for _ in range(count):
        without.append(work.run(None) / BLOCK / 1e3)
        hook = work.hook()
        work.run(hook)  # the first backward pass learns which gradient is the last
        with_.append(work.run(hook) / BLOCK / 1e3)
        hook.close()
    return without, with_


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(ROOT, "bench", "out", "hook.json"))
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["PITCREW_DIR"] = directory
        os.environ.update(RANK="0", WORLD_SIZE="2")
        hook = Hook(torch_version="bench")
        agent = wire.connect(os.path.join(directory, "local-0.sock"))
        agent.recv(65536)
        calls(hook, 1000)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        taken = calls(hook, options.steps)
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
        hook.close()
        agent.close()
        work = Workload()
        without, with_ = blocks(work, max(10, options.steps // 2 // BLOCK))
    least = percentile(with_, 10) - percentile(without, 10)
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
            "what": work.what,
            "without_us": round(statistics.median(without), 3),
            "with_us": round(statistics.median(with_), 3),
            "difference_us": {
                "least": round(least, 3),
                **{p: round(percentile(pairs, n), 3) for p, n in (("p25", 25), ("p50", 50), ("p75", 75))},
            },
            "pairs_of_blocks": len(pairs),
            "steps_per_block": BLOCK,
        },
        "voluntary_switches_per_step": waits / len(taken),
        "aim_us": AIM_US,
        "ok": max(percentile(taken, 95), least) <= AIM_US,
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
