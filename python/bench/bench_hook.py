"""What the hook costs a step on the training thread, measured with and without it in one run.

    python3 python/bench/bench_hook.py [--out bench/out/hook.json] [--steps 20000] [--blocks 100]

`us_per_step`: the time inside `step(loss)` itself in a loop of its own, call by call, with the ring, the side thread
and an agent connected.
`loop`: whole training steps (data loader, forward, backward, optimizer, `pitcrew.step`) of the smallest model, in
blocks that run in turn without the hook and with it, as one of two ranks: as it chooses the steps that it measures
(`default`, one in 256 of such short ones), with no step measured (`unmeasured`), with every second one (`alternate`).
It is the processor time of the training thread. `least` is the difference between the least disturbed tenths of the
blocks, which is what a step costs also on a machine that is shared; quartiles of the differences of neighbouring
blocks beside it tell how disturbed it was. `cost_us` follows from `least`: a measured step's is twice `alternate`
less `unmeasured`, putting the probes on and off included. Without torch a loop of plain Python stands in.

`ok` is whether a step costs at most 5 microseconds on average over the default choice of measured steps (`least`),
and `step` alone does so at its 95th percentile.
"""

import argparse
import contextlib
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

import pitcrew_torch  # noqa: E402
from pitcrew_torch import wire  # noqa: E402
from pitcrew_torch.hook import Hook  # noqa: E402

BLOCK = 256  # steps: short, so that some are not interrupted, and one of them is measured by default
AIM_US = 5.0
NEVER = 1 << 40
CHOICES = {"default": None, "unmeasured": NEVER, "alternate": 2}  # attach(phases=)


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))]


def processor():
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


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

    def hook(self, phases):
        if self._torch is None:
            return Hook(torch_version="bench")
        return pitcrew_torch.attach(self._model, self._optimizer, phases=phases)

    def run(self, hook):
        """One block; nanoseconds of this thread."""
        if self._torch is None:
            step = hook.step if hook is not None else lambda loss: None
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
            pitcrew_torch.step(loss.item())  # nobody is attached where there is no hook
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
    """Microseconds a step, block by block: without the hook, and with it by each choice, in turn. And one step of how
    many was measured by default, all answers."""
    without, with_, every = [], {name: [] for name in CHOICES}, set()
    for _ in range(count):
        work.run(None)
        without.append(work.run(None) / BLOCK / 1e3)
        for name, phases in CHOICES.items():
            hook = work.hook(phases)
            work.run(hook)  # the first backward passes learn which gradient is the last
            with_[name].append(work.run(hook) / BLOCK / 1e3)
            if phases is None and hook.steps.probes is not None:
                every.add(hook.steps.probes.every)
            pitcrew_torch.detach()
            hook.close()
    return without, with_, sorted(every)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(ROOT, "bench", "out", "hook.json"))
    parser.add_argument("--steps", type=int, default=20_000, help="calls of step alone")
    parser.add_argument("--blocks", type=int, default=100, help="of whole training steps, for each choice")
    options = parser.parse_args()
    in_memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # as a pod's volume is
    with tempfile.TemporaryDirectory(dir=in_memory) as directory:
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
        without, with_, every = blocks(work, max(10, options.blocks))
    least = {name: percentile(taken_, 10) - percentile(without, 10) for name, taken_ in with_.items()}
    pairs = {name: [b - a for a, b in zip(without, taken_)] for name, taken_ in with_.items()}
    cost = {
        "default": least["default"],
        "unmeasured_step": least["unmeasured"],
        "measured_step": 2 * least["alternate"] - least["unmeasured"],
    }
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
            "cost_us": {name: round(value, 3) for name, value in cost.items()},
            "difference_us": {
                name: {
                    "least": round(least[name], 3),
                    **{p: round(percentile(pairs[name], n), 3) for p, n in (("p25", 25), ("p50", 50), ("p75", 75))},
                }
                for name in CHOICES
            },
            "default_measures_one_of": every,
            "blocks_each": len(without),
            "steps_per_block": BLOCK,
        },
        "voluntary_switches_per_step": waits / len(taken),
        "aim_us": AIM_US,
        "ok": max(percentile(taken, 95), least["default"]) <= AIM_US,
        "machine": {
            "cpus": os.cpu_count(),
            "processor": processor(),
            "load": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
        },
    }
    os.makedirs(os.path.dirname(options.out), exist_ok=True)
    with open(options.out, "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    print(json.dumps(result, indent=1))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
