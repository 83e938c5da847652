"""A training loop for the measurements of the hook: a model, whole steps, and the hook attached in several ways."""

import contextlib
import os

import torch

# attach(phases=): which steps are measured, that is have CUDA events around their phases.
EVENTS_OFF, DEFAULT, EVERY_STEP = 0, None, 1


class Load:
    """Steps of a stack of square layers. Small ones are bound by launches, large ones by the device."""

    def __init__(self, device, width, layers, batch):
        torch.manual_seed(5)
        self.device = device
        blocks = [m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.GELU())]
        self.model = torch.nn.Sequential(*blocks).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(batch, width, device=device)

    def loss(self):
        return self.model(self.batch).square().mean()

    def step(self, end):
        """One step; end(loss) is its last statement, as pitcrew.step is in a training script."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        end(loss.detach())

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


@contextlib.contextmanager
def attached(load, phases, directory):
    """The real hook on a load, as rank 0 of 2. Gives (the hook, pitcrew_torch)."""
    import pitcrew_torch

    os.environ.update(PITCREW_DIR=directory, RANK="0", LOCAL_RANK="0", WORLD_SIZE="2")
    hook = pitcrew_torch.attach(load.model, load.optimizer, phases=phases, step_on="call")
    if hook is None:
        raise RuntimeError("attach() refused: see the warning above")
    try:
        yield hook, pitcrew_torch
    finally:
        pitcrew_torch.detach()


def trouble(hook):
    """What the hook wrote down as its last error, "" for none."""
    from pitcrew_torch import ring

    return ring.parse(bytes(hook.ring._buffer))["header"]["last_error"]


def records(hook):
    """The ring's records by step."""
    from pitcrew_torch import ring

    return {r["step"]: r for r in ring.parse(bytes(hook.ring._buffer))["records"]}
