"""The demo's training job: a small, deterministic DDP model on CPU (gloo), with Pitcrew's hook.

SIMULATED: the GPU. Each step reads one byte of a file that stands for this rank's GPU (`o` it works, `b` a call to it
never returns, as after it fell off the bus, `e` a call fails with an uncorrectable ECC error), and from the rest how
fast it is: a step's compute time is waited for, STEP_SECONDS times that factor, and so is its launch latency.
Everything else is real: torch, gloo, the waits of ranks for each other, the checkpoints, the processes.

The data of a step follows from its number, so a run resumed from step S repeats the losses of an uninterrupted one bit
for bit. Run it with torchrun or `python -m pitcrew_torch.run`. Settings, all from the environment:

    STEP_SECONDS (0.1): compute time of a step; a step takes the slowest rank's and the exchange of gradients
    WARMUP_STEPS (0): at first, each step takes longer, the first ten times as long
    EVAL_EVERY (0: never), EVAL_SECONDS (2): an evaluation after so many steps, in a section of its own
    SCHEDULE: "STEP:FACTOR,…": from that step on batches, and their compute time, are so many times as large
    TOTAL_STEPS (1000000) · CKPT_DIR or PITCREW_CKPT_DIR · CKPT_EVERY (20)
    PITCREW_SIM_GPU: files, comma-separated, or a directory with one file per local rank
    PITCREW_TRAIN_LOG: directory for rank-<R>.log, one line a step: step, loss (hexadecimal), attempt, rank, unix time
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

import pitcrew_torch as pitcrew
import torch
import torch.distributed as dist
from pitcrew_torch.ring import COMM

from simgpu import LaunchRecorder, SimulatedGPU

WIDTH, BATCH, SEED = 64, 32, 20240229


def build():
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(2 * WIDTH, 1)
    )
    model = torch.nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def batch(step, rank, size=BATCH):
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + step * 1_009 + rank)
    x = torch.randn(size, WIDTH, generator=generator)
    return x, x[:, :8].sum(dim=1, keepdim=True).sin()


def open_log(rank):
    directory = os.environ.get("PITCREW_TRAIN_LOG")
    if not directory:
        return None
    os.makedirs(directory, exist_ok=True)
    return open(os.path.join(directory, "rank-%d.log" % rank), "a", buffering=1)


def schedule(text):
    """The factor of a step, from "STEP:FACTOR,...", in rising order."""
    changes = [(int(step), float(factor)) for step, factor in (c.split(":") for c in text.split(",") if c)]

    def factor(step):
        return next((f for s, f in reversed(changes) if step >= s), 1.0)

    return factor


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, local_rank = dist.get_rank(), int(os.environ.get("LOCAL_RANK", 0))
    model, optimizer = build()
    hook = pitcrew.attach(
        model,
        optimizer,
        checkpoint_dir=os.environ.get("CKPT_DIR") or os.environ.get("PITCREW_CKPT_DIR"),
        checkpoint_every=int(os.environ.get("CKPT_EVERY", 20)),
        step_on="call",
    )
    gpu = SimulatedGPU(os.environ.get("PITCREW_SIM_GPU", ""), local_rank)
    seconds, total = float(os.environ.get("STEP_SECONDS", 0.1)), int(os.environ.get("TOTAL_STEPS", 1_000_000))
    warm, every = int(os.environ.get("WARMUP_STEPS", 0)), int(os.environ.get("EVAL_EVERY", 0))
    factor_of, pause = schedule(os.environ.get("SCHEDULE", "")), float(os.environ.get("EVAL_SECONDS", 2))
    hook.steps.device = launches = LaunchRecorder(hook.ring)
    log = open_log(rank)
    start = pitcrew.resume()
    if start == 0:
        torch.manual_seed(SEED + rank)
    print("rank %d: attempt %d, from step %d" % (rank, hook.attempt, start), flush=True)

    for step in range(start, total):
        began = time.monotonic()
        gpu.touch()
        launches.nanoseconds = gpu.launch()
        factor = factor_of(step)
        samples = int(BATCH * factor)
        x, y = batch(step, rank, samples)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        waited = launches.nanoseconds / 1e9 + hook.phases[COMM] / 1e9  # neither is the device's own work
        work = seconds * factor * gpu.slowdown() * max(1.0, 10 * (1 - step / warm) if warm else 1.0)
        time.sleep(max(0.0, work - (time.monotonic() - began - waited)))
        if log is not None:
            log.write("%d %s %d %d %.6f\n" % (step + 1, value.hex(), hook.attempt, rank, time.time()))
        pitcrew.step(value, samples=samples)
        if every and (step + 1) % every == 0:
            with pitcrew.section("eval"):
                time.sleep(pause)

    pitcrew.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
