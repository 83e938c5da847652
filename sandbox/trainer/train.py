"""The demo's training job: a small, deterministic DDP model on CPU (gloo), with Pitcrew's hook.

SIMULATED: the GPU. Each step reads one byte of a file that stands for this rank's GPU (`o` it works, `b` a call to it
never returns, as after it fell off the bus, `e` a call fails with an uncorrectable ECC error). Everything else is real:
torch, gloo, the checkpoints, the processes.

The data of a step follows from its number, so a run resumed from step S repeats the losses of an uninterrupted one bit
for bit. Run it with torchrun or `python -m pitcrew_torch.run`. Settings, all from the environment:

    STEP_SECONDS (0.1) · TOTAL_STEPS (1000000) · CKPT_DIR or PITCREW_CKPT_DIR · CKPT_EVERY (20)
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

from simgpu import SimulatedGPU

WIDTH, BATCH, SEED = 64, 32, 20240229


def build():
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(2 * WIDTH, 1)
    )
    model = torch.nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def batch(step, rank):
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + step * 1_009 + rank)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x, x[:, :8].sum(dim=1, keepdim=True).sin()


def open_log(rank):
    directory = os.environ.get("PITCREW_TRAIN_LOG")
    if not directory:
        return None
    os.makedirs(directory, exist_ok=True)
    return open(os.path.join(directory, "rank-%d.log" % rank), "a", buffering=1)


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
    log = open_log(rank)
    start = pitcrew.resume()
    if start == 0:
        torch.manual_seed(SEED + rank)
    print("rank %d: attempt %d, from step %d" % (rank, hook.attempt, start), flush=True)

    for step in range(start, total):
        began = time.monotonic()
        gpu.touch()
        x, y = batch(step, rank)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        if log is not None:
            log.write("%d %s %d %d %.6f\n" % (step + 1, value.hex(), hook.attempt, rank, time.time()))
        pitcrew.step(value, samples=BATCH)

    pitcrew.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
