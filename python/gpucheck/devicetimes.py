"""The hook's device times and launch latency, step by step, against torch.profiler's kernels of the same steps.

The profiler's trace has every kernel with the launch it belongs to. A kernel counts for the phase in which it was
launched. The phase's time by the profiler runs from its first kernel's start to its last kernel's end. The hook's has
the gap before the first kernel in it too, so it is a little longer. The launch latency by the profiler is the wait of
the step's first kernel, above the least of the same steps, as the hook computes it.

On a CPU the hook measures on the host's clock, and the ranges of the training script are what it is compared with.
"""

import collections
import json
import os

import torch

from . import training
from .figures import Missing

PHASES = ("forward", "backward", "optimizer")
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime"}
RUN_AHEAD = 3  # steps are issued without waiting, and then the device is waited for: fewer than the hook keeps pending
TOLERANCE = 0.15  # of a phase's time, in the median, on a GPU


def step(load, number, end):
    """A step in ranges that the trace shows."""
    ranges = torch.profiler.record_function
    load.optimizer.zero_grad()
    with ranges("check/%d/forward" % number):
        loss = load.loss()
    with ranges("check/%d/backward" % number):
        loss.backward()
    with ranges("check/%d/optimizer" % number):
        load.optimizer.step()
    end(loss.detach())


def recorded(context, load, steps):
    """(the trace's events, the hook's records by step, what the hook wrote down as trouble)"""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if context.device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    path = os.path.join(context.work, "trace.json")
    with training.attached(load, training.EVERY_STEP, context.memory) as (hook, pitcrew):
        end = lambda loss: pitcrew.step(loss)  # noqa: E731
        for number in range(1, 9):
            step(load, number, end)
            load.wait()
        with torch.profiler.profile(activities=kinds) as profiler:
            for number in range(9, 9 + steps):
                step(load, number, end)
                if number % RUN_AHEAD == 0:
                    load.wait()
            load.wait()
        for number in range(9 + steps, 13 + steps):  # what is pending is collected in later steps
            step(load, number, end)
            load.wait()
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as f:
            trace = json.load(f)
        events = trace if isinstance(trace, list) else trace["traceEvents"]  # a list: torch without Kineto
        return events, training.records(hook), training.trouble(hook)


def by_profiler(events):
    """{step: {phase: {"host", "device", "latency"}}} in nanoseconds. device and latency only if there are kernels."""
    ranges, launches, kernels = {}, {}, []
    for e in events:
        kind, name = str(e.get("cat", "")).lower(), str(e.get("name", ""))
        if e.get("ph") != "X":
            continue
        if name.startswith("check/") and not kind.startswith("gpu"):
            _, number, phase = name.split("/")
            ranges[int(number), phase] = (e["ts"], e["ts"] + e["dur"])
        elif kind in ON_DEVICE:
            kernels.append(e)
        elif kind in LAUNCHES and "correlation" in e.get("args", {}):
            launches[e["args"]["correlation"]] = e["ts"]
    found = collections.defaultdict(dict)
    for (number, phase), (begin, end) in ranges.items():
        found[number][phase] = {"host": (end - begin) * 1e3}
    of = {}
    for kernel in kernels:
        issued = launches.get(kernel.get("args", {}).get("correlation"))
        if issued is not None:
            key = next((k for k, (begin, end) in ranges.items() if begin <= issued <= end), None)
            if key is not None:
                of.setdefault(key, []).append((kernel["ts"], kernel["ts"] + kernel["dur"], issued))
    for (number, phase), spans in of.items():
        first = min(spans)
        found[number][phase]["device"] = (max(end for _, end, _ in spans) - first[0]) * 1e3
        found[number][phase]["latency"] = (first[0] - first[2]) * 1e3
    return dict(found)


def run(context, report):
    width, layers, batch = context.size((4096, 6, 2048), (64, 2, 64))
    load = training.Load(context.device, width, layers, batch)
    events, records, trouble = recorded(context, load, context.size(60, 12))
    compare(context, report, by_profiler(events), records, trouble)


def compare(context, report, profiled, records, trouble):
    if not profiled:
        raise Missing("torch.profiler's trace has none of the ranges")
    on_gpu = context.device == "cuda"
    clock = "device" if on_gpu else "host"
    both = [(profiled[n], records[n]) for n in sorted(profiled) if n in records and records[n]["forward_ns"]]
    report.fact("steps profiled, and measured by the hook too", [len(profiled), len(both)])
    report.check("trouble that the hook wrote down", "", trouble)
    report.check("steps that both measured", True, len(both) * 2 > len(profiled))
    for phase in PHASES:
        pairs = [(r[phase + "_ns"], p[phase][clock]) for p, r in both if clock in p.get(phase, {}) and r[phase + "_ns"]]
        if not pairs:
            report.note("%s: the trace has no kernels of it" % phase)
            continue
        report.figure("%s by the hook" % phase, "us", [mine / 1e3 for mine, _ in pairs])
        report.figure("%s by the profiler" % phase, "us", [theirs / 1e3 for _, theirs in pairs])
        ratios = sorted(mine / theirs for mine, theirs in pairs)
        report.figure("%s, hook / profiler" % phase, "ratio", ratios)
        if on_gpu:
            middle = ratios[len(ratios) // 2]
            text = "within %g of 1 in the median" % TOLERANCE
            report.check("%s, hook / profiler" % phase, text, round(middle, 3), abs(middle - 1) <= TOLERANCE)
    if on_gpu:
        latencies(report, both)


def latencies(report, both):
    known = [(p["forward"], r["launch_ns"]) for p, r in both if "latency" in p.get("forward", {}) and r["launch_ns"]]
    pairs = [(mine, forward["latency"]) for forward, mine in known]
    if not pairs:
        report.note("launch latency: no step has it from both")
        return
    least = [min(column) for column in zip(*pairs)]
    mine, theirs = ([(value - low) / 1e3 for value in column] for column, low in zip(zip(*pairs), least))
    report.figure("launch latency above the least, by the hook", "us", mine)
    report.figure("launch latency above the least, by the profiler", "us", theirs)
    report.figure("launch latency, difference between the two", "us", [abs(a - b) for a, b in zip(mine, theirs)])
