"""Lightning: `fit(trainer, model, ..., checkpoint_dir=...)` in place of `trainer.fit(model, ...)`.

    from pitcrew_torch.integrations.lightning import fit

    trainer = lightning.Trainer(max_steps=100_000, devices=8, strategy="ddp")
    fit(trainer, model, train_dataloaders=data, checkpoint_dir="/checkpoints", checkpoint_every=500)

Each checkpoint is one of Lightning's own. Lightning restores the weights, the optimizers, the schedules, `global_step`,
the loops and the callbacks. It begins the epoch's batches anew, so the batches that were trained on are skipped here,
unless the loader keeps its own place (`StatefulDataLoader`). The order of the batches must be a function of the epoch:
that of a DistributedSampler is, that of `shuffle=True` in one process is not.

One process, or data parallel (DDP) with ranks that torchrun or Pitcrew's launcher started. Lightning's own launcher
starts its ranks inside `trainer.fit`, too late to agree on a checkpoint: it is refused, as are FSDP and DeepSpeed.
"""

import itertools
import os

import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

import pitcrew_torch as pitcrew
from pitcrew_torch import torchstate

_NAME = "lightning.ckpt"


class _Steps(Callback):
    """Tells Pitcrew of each optimizer step. A checkpoint is saved inside that call, when the step is complete."""

    def __init__(self, numbers):
        self._done = 0
        self._numbers = numbers  # the random numbers' state of the checkpoint, until training begins

    def on_train_start(self, trainer, module):
        self._done = trainer.global_step
        self._skip(trainer.fit_loop)

    def on_train_batch_start(self, *_):
        if self._numbers is not None:  # preparing loaders has drawn some
            torchstate.restore_generators(self._numbers)
            self._numbers = None

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step > self._done:
            self._done = trainer.global_step
            pitcrew.step(None, self._done)

    @staticmethod
    def _skip(loop):
        """Batches of the epoch that the checkpoint has: taken from the loader at its first use, when its sampler knows
        the epoch."""
        batches, fetcher = loop.epoch_loop.batch_progress, loop._data_fetcher
        keeps = all(hasattr(each, "load_state_dict") for each in loop._combined_loader.flattened)
        if loop.restarted_mid_epoch and not batches.is_last_batch and not keeps:
            fetcher.iterator = itertools.islice(fetcher.iterator, batches.current.ready, None)


class _Evaluation(Callback):
    """The time of validation is no time of a step."""

    def __init__(self):
        self._section = None

    def on_validation_start(self, trainer, module):
        self._section = pitcrew.section("eval")
        self._section.__enter__()

    def on_validation_end(self, trainer, module):
        self._leave()

    def on_exception(self, trainer, module, exception):
        self._leave()

    def _leave(self):
        section, self._section = self._section, None
        if section is not None:
            section.__exit__(None, None, None)


def fit(trainer, model, *args, checkpoint_dir, checkpoint_every=None, fresh=False, attach=None, **options):
    """Fit with this Trainer from the newest sound checkpoint, or from the beginning if there is none.

    args, options: as of `trainer.fit`, without ckpt_path. checkpoint_every: optimizer steps between periodic
    checkpoints. fresh: as of `pitcrew_torch.resume`. attach: further arguments of `pitcrew_torch.attach`, as a dict.

    Raises what `pitcrew_torch.resume` raises, and ValueError for strategies and launchers that are not supported.
    """
    if not isinstance(trainer.strategy, (SingleDeviceStrategy, DDPStrategy)):
        raise ValueError(
            "pitcrew_torch.integrations.lightning saves data-parallel training only, not %s: use "
            "pitcrew_torch.attach(save_fn=..., load_fn=...), docs/training.md" % type(trainer.strategy).__name__
        )
    if trainer.world_size > 1:
        _join(trainer)
    found = []

    def save(context):
        state = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)  # on each rank, as Lightning does
        if context.is_writer:
            with context.open(_NAME) as file:
                torch.save(state, file)
        return []

    pitcrew.attach(
        model, None, save, lambda context: found.append(os.path.join(context.directory, _NAME)),
        checkpoint_dir=checkpoint_dir, checkpoint_every=checkpoint_every, strategy="ddp", **(attach or {}),
    )  # fmt: skip
    ours = []
    try:
        pitcrew.resume(fresh=fresh)
        ours = [_Steps(torchstate.generators(cuda=True) if found else None), _Evaluation()]
        trainer.callbacks.extend(ours)
        trainer.fit(model, *args, ckpt_path=found[0] if found else None, **options)
    finally:
        trainer.callbacks[:] = [each for each in trainer.callbacks if each not in ours]
        pitcrew.detach()


def _join(trainer):
    """The ranks meet now, so that they choose one checkpoint. Lightning uses the process group that it finds."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ValueError(
            "this process is one of %d ranks that Lightning would start itself: start them with torchrun or "
            "`python -m pitcrew_torch.run`, so that they agree on a checkpoint before training" % trainer.world_size
        )
    if not torch.distributed.is_initialized():
        device = trainer.strategy.root_device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
