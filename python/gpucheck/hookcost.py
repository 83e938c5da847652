"""What the hook adds to a training step, with its CUDA events off and on.

Blocks of steps run without the hook and with it in three ways, in a random order within each round. A round gives one
difference per way between its block and the round's block without the hook; the figures are medians of these. Times end
with a synchronization, so the wall time holds the device's work. The thread's processor time is what the host pays.
"""

import contextlib
import random
import time

from . import training

WAYS = {
    "events off": training.EVENTS_OFF,
    "events on, default choice of steps": training.DEFAULT,
    "events on, every step": training.EVERY_STEP,
}
BUDGET = 22.0  # seconds of each load, after which no further round begins
# By default one step of 256 is measured below 5 ms, one of 64 below 20 ms: a block is long enough to have one.
WARM = 4  # steps before each block: probes learn which gradient is the last


def block(load, steps, end):
    """(wall, thread) microseconds per step."""
    for _ in range(WARM):
        load.step(end)
    load.wait()
    wall, thread = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(steps):
        load.step(end)
    spent = time.thread_time_ns() - thread
    load.wait()
    return (time.perf_counter_ns() - wall) / steps / 1e3, spent / steps / 1e3


def nothing(loss):
    pass


def step_of(pitcrew):
    return lambda loss: pitcrew.step(loss)  # looked up by its name each time, as in a training script


def run(context, report):
    # name, width, layers, batch, steps a block, rounds
    loads = (
        ("small steps", context.size((256, 4, 32), (16, 2, 4)), context.size(256, 10), context.size(40, 3)),
        ("large steps", context.size((4096, 8, 512), (64, 2, 64)), context.size(64, 5), context.size(15, 3)),
    )
    order = random.Random(11)
    for name, (width, layers, batch), steps, rounds in loads:
        load = training.Load(context.device, width, layers, batch)
        block(load, steps, nothing)
        taken, every = {way: [] for way in (None, *WAYS)}, set()
        until = time.monotonic() + BUDGET
        for _ in range(rounds):
            if time.monotonic() > until:
                break
            ways = list(taken)
            order.shuffle(ways)
            for way in ways:
                with contextlib.ExitStack() as stack:
                    end = nothing
                    if way is not None:
                        hook, pitcrew = stack.enter_context(training.attached(load, WAYS[way], context.memory))
                        end = step_of(pitcrew)
                    taken[way].append(block(load, steps, end))
                    if way is not None and WAYS[way] is training.DEFAULT:
                        every.add(hook.steps.probes.every)
        report.fact("%s: by default, one step is measured of" % name, sorted(every))
        plain = taken[None]
        report.figure("%s: step without the hook, wall" % name, "us", [wall for wall, _ in plain])
        for way in WAYS:
            for n, clock in enumerate(("wall", "thread")):
                added = [with_[n] - without[n] for with_, without in zip(taken[way], plain)]
                report.figure("%s: added to a step, %s, %s" % (name, way, clock), "us", added)
