"""A loss that is not finite is seen on the device's own time, and step() never waits for it.

Two proofs. Torch's own watch (set_sync_debug_mode) warns at each call that synchronizes: none may come from step().
And the device is kept busy for a while before each call: step() must return long before. `loss.item()` is the control
of both: it must warn, and it must take as long as the device is busy.
"""

import math
import struct
import time
import warnings

import torch

from . import figures, training

BUSY_SECONDS = 0.05
CLOCK = 2e9  # cycles a second that the device is taken to make; what it makes is measured by the control
SYNCHRONIZES = "synchronizing CUDA operation"


def occupy():
    torch.cuda._sleep(int(BUSY_SECONDS * CLOCK))


def watched(call):
    """How many calls that synchronize torch saw in it."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum(SYNCHRONIZES in str(w.message) for w in seen)


def timed(call):
    began = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began) / 1e6


def counted(hook):
    """How many values that were not finite the hook has counted, without parsing the whole ring."""
    from pitcrew_torch import ring

    return struct.unpack_from("<Q", hook.ring._buffer, ring.HEADER["nonfinite"][0])[0]


def run(context, report):
    on_gpu = context.device == "cuda"
    load = training.Load(context.device, 256 if on_gpu else 16, 2, 16)
    with training.attached(load, training.EVERY_STEP, context.memory) as (hook, pitcrew):
        for _ in range(20):
            load.step(lambda loss: pitcrew.step(loss))
        load.wait()
        if on_gpu:
            never_waits(report, load, pitcrew, 40)
        seen, steps = [], []
        for _ in range(context.size(20, 5)):
            before, began, at = counted(hook), time.perf_counter(), hook.step_count
            load.step(lambda loss: pitcrew.step(loss * math.nan))

            def found(before=before):
                if counted(hook) > before:
                    return True
                load.step(lambda loss: pitcrew.step(loss))
                return False

            figures.wait_until(found, context.patience, "the hook to count the loss that is not finite", every=0.0)
            seen.append((time.perf_counter() - began) * 1e3)
            steps.append(hook.step_count - at - 1)
        report.figure("loss not finite until the hook counts it, every step measured", "ms", seen)
        report.figure("the same in steps after it", "steps", steps)
        report.check("trouble that the hook wrote down", "", training.trouble(hook))


def never_waits(report, load, pitcrew, rounds):
    calls, held, control, synchronized, seen = [], [], [], [], []

    def busy(loss):
        occupy()
        calls.append(timed(lambda: pitcrew.step(loss)))
        held.append(timed(load.wait))

    def watch(loss):
        synchronized.append(watched(lambda: pitcrew.step(loss)))

    def compare(loss):
        occupy()
        control.append(timed(loss.item))
        seen.append(watched(loss.item))
        pitcrew.step(loss)

    for _ in range(rounds):
        for end in (busy, lambda loss: busy(loss * math.nan), watch, lambda loss: watch(loss * math.nan)):
            load.step(end)
            load.wait()
    for _ in range(5):
        load.step(compare)
    report.figure("step(loss) while the device is busy", "ms", calls)
    report.figure("how long the device was still busy after it", "ms", held)
    report.figure("control: loss.item() while the device is busy", "ms", control)
    report.check("every control, loss.item(), is seen to synchronize", True, min(seen) > 0)
    report.check("synchronizing calls in step()", 0, sum(synchronized))
    longest, bound = max(calls), min(control) / 2
    text = "under %.3f ms, half the shortest loss.item()" % bound
    report.check("the longest step()", text, "%.3f ms" % longest, longest < bound)


__all__ = ["run", "torch"]
