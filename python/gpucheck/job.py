"""The training job of the checks: a process that trains on its device and writes down when it does what.

Run by the measurements, alone or under Pitcrew's launcher. Settings from the environment:

    JOB_DEVICE (cpu), JOB_WIDTH, JOB_LAYERS: the model, square layers of JOB_WIDTH
    JOB_STEPS: steps until a clean end; 0 is no end
    JOB_STEP_SECONDS: a step takes at least so long
    JOB_CHECKPOINTS: directory, "" for none; JOB_SAVE_EVERY: steps between periodic checkpoints, 0 for none
    JOB_NCCL: 1 for an NCCL group of world size 1 beside the ranks' gloo group
    JOB_LOG: a folder; rank R appends JSON lines to R.log
    JOB_SPAWNED: time.monotonic() of whoever started this process

SIGUSR1 makes the next step get stuck on the device: on CUDA a kernel that spins, on a CPU a sleep.
"""

import time

ENTERED = time.monotonic()

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402

SPIN_SECONDS = 60.0
CLOCK = 2e9  # of the device, about: how many cycles a second are to be spun


def number(name, default=0.0):
    return float(os.environ.get(name) or default)


class Log:
    def __init__(self, rank):
        self._fd = os.open(
            os.path.join(os.environ["JOB_LOG"], "%d.log" % rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        )

    def say(self, kind, **fields):
        line = dict({"t": kind, "at": time.time(), "mono": time.monotonic(), "pid": os.getpid()}, **fields)
        os.write(self._fd, json.dumps(line).encode() + b"\n")


class Phases:
    """Seconds of each phase of a start, in order."""

    def __init__(self, since):
        self.seconds, self._last = {}, since

    def end(self, name):
        now = time.monotonic()
        self.seconds[name], self._last = now - self._last, now


def build(torch, device):
    width, layers = int(number("JOB_WIDTH", 64)), int(number("JOB_LAYERS", 2))
    torch.manual_seed(7)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False, device=device) for _ in range(layers)])
    return model, torch.randn(4, width, device=device)


def wait(torch, device):
    if device == "cuda":
        torch.cuda.synchronize()


def main():
    phases = Phases(number("JOB_SPAWNED", ENTERED))
    phases.end("interpreter")
    import torch
    import torch.distributed as dist

    import pitcrew_torch as pitcrew

    phases.end("import of torch")
    device, stuck = os.environ.get("JOB_DEVICE", "cpu"), []
    signal.signal(signal.SIGUSR1, lambda *_: stuck.append(True))
    torch.zeros(1, device=device)
    wait(torch, device)
    phases.end("CUDA context" if device == "cuda" else "first tensor")
    world = int(number("WORLD_SIZE", 1))
    one = None
    if os.environ.get("JOB_NCCL") == "1" and world == 1:
        store = "tcp://127.0.0.1:%s" % os.environ["MASTER_PORT"]
        dist.init_process_group("nccl", init_method=store, rank=0, world_size=1)
        one = dist.group.WORLD
    elif world > 1:
        dist.init_process_group("gloo")
        if os.environ.get("JOB_NCCL") == "1":
            groups = [dist.new_group([r], backend="nccl") for r in range(world)]
            one = groups[dist.get_rank()]
    if dist.is_initialized():
        phases.end("process group")
    if one is not None:
        dist.all_reduce(torch.ones(1, device=device), group=one)
        wait(torch, device)
        phases.end("first NCCL collective")
    model, batch = build(torch, device)
    phases.end("model")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    phases.end("optimizer")  # the first one imports half of torch
    hook = pitcrew.attach(
        model, optimizer, checkpoint_dir=os.environ.get("JOB_CHECKPOINTS") or None,
        checkpoint_every=int(number("JOB_SAVE_EVERY")) or None, keep=1, step_on="call",
    )  # fmt: skip
    phases.end("attach")
    start = pitcrew.resume()
    wait(torch, device)
    phases.end("load")
    log = Log(hook.rank)
    log.say("start", attempt=hook.attempt, step=start, rank=hook.rank)
    train(torch, dist, pitcrew, hook, log, phases, model, optimizer, batch, start, device, world, stuck, one)
    pitcrew.detach()
    if dist.is_initialized():
        dist.destroy_process_group()


def train(torch, dist, pitcrew, hook, log, phases, model, optimizer, batch, start, device, world, stuck, one):
    steps, least = int(number("JOB_STEPS")), number("JOB_STEP_SECONDS")
    step = start
    while not steps or step < start + steps:
        began = time.monotonic()
        if stuck:
            stuck.clear()
            log.say("stuck", step=step)
            if device == "cuda":
                torch.cuda._sleep(int(SPIN_SECONDS * CLOCK))
            else:
                time.sleep(SPIN_SECONDS)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        if world > 1:  # the device's tensors through gloo: two ranks of NCCL cannot share a GPU
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        if one is not None:
            dist.all_reduce(loss.detach(), group=one)
        optimizer.step()
        if step == start:
            wait(torch, device)
            phases.end("first step")
            log.say("phases", attempt=hook.attempt, seconds=phases.seconds, step=step + 1)
        time.sleep(max(0.0, least - (time.monotonic() - began)))
        step += 1
        pitcrew.step(loss)
        log.say("step", step=step, attempt=hook.attempt)


if __name__ == "__main__":
    main()
