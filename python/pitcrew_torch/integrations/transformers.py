"""Hugging Face Trainer: `train(trainer, checkpoint_dir=...)` in place of `trainer.train()`.

    from pitcrew_torch.integrations.transformers import train

    trainer = Trainer(model=model, args=args, train_dataset=data)
    train(trainer, checkpoint_dir="/checkpoints", checkpoint_every=500)

Each checkpoint holds what Trainer's own `checkpoint-N` folder holds, so Trainer restores the weights, the optimizer,
the schedule, `global_step`, the position in the data and the random numbers. Set `save_strategy="no"` in
TrainingArguments: Trainer's own checkpoints are not needed beside these.

One process, or data parallel by torchrun or Pitcrew's launcher. FSDP and DeepSpeed are refused: their state is in
parts, which `pitcrew_torch.attach(save_fn=..., load_fn=...)` saves.
"""

import os

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

import pitcrew_torch as pitcrew

_STATE, _OPTIMIZER, _SCHEDULER, _SCALER = "trainer_state.json", "optimizer.pt", "scheduler.pt", "scaler.pt"


class _Steps(TrainerCallback):
    """Tells Pitcrew of each optimizer step. A checkpoint is saved inside that call, when the step is complete."""

    def on_step_end(self, args, state, control, **_):
        pitcrew.step(None, state.global_step)


class _Checkpoint:
    """Writes and finds Trainer's checkpoint folder."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.found = None

    def save(self, context):
        trainer, names = self.trainer, []
        if context.is_writer:
            trainer._save(context.directory)
            self._write(context, _OPTIMIZER, trainer.optimizer)
            self._write(context, _SCHEDULER, trainer.lr_scheduler)
            self._write(context, _SCALER, getattr(trainer.accelerator, "scaler", None))
            self._keep_callbacks()
            trainer.state.save_to_json(os.path.join(context.directory, _STATE))
            names += [n for n in os.listdir(context.directory) if not n.startswith(("rng_state", "rank-"))]
        trainer._save_rng_state(context.directory)
        own = "rng_state.pth" if trainer.args.world_size <= 1 else "rng_state_%d.pth" % trainer.args.process_index
        return [*names, own]

    def load(self, context):
        self.found = context.directory

    @staticmethod
    def _write(context, name, state):
        if state is not None:
            with context.open(name) as file:
                torch.save(state.state_dict(), file)

    def _keep_callbacks(self):
        """As Trainer does before it saves: the state of callbacks such as EarlyStoppingCallback."""
        trainer = self.trainer
        for each in [*trainer.callback_handler.callbacks, trainer.control]:
            if isinstance(each, ExportableState):
                trainer.state.stateful_callbacks[type(each).__name__] = each.state()


def train(trainer, *, checkpoint_dir, checkpoint_every=None, fresh=False, **attach):
    """Train with this Trainer from the newest sound checkpoint, or from the beginning if there is none.

    checkpoint_every: optimizer steps between periodic checkpoints. fresh: as of `pitcrew_torch.resume`. attach: further
    arguments of `pitcrew_torch.attach`, such as keep or workload. Returns what `trainer.train` returns.

    Raises what `pitcrew_torch.resume` raises, and ValueError for FSDP and DeepSpeed.
    """
    for name in ("is_fsdp_enabled", "is_deepspeed_enabled"):
        if getattr(trainer, name, False):
            raise ValueError(
                "pitcrew_torch.integrations.transformers saves data-parallel training only, and %s: use "
                "pitcrew_torch.attach(save_fn=..., load_fn=...), docs/training.md" % name
            )
    checkpoint = _Checkpoint(trainer)
    pitcrew.attach(
        trainer.model, None, checkpoint.save, checkpoint.load, checkpoint_dir=checkpoint_dir,
        checkpoint_every=checkpoint_every, strategy="ddp", **attach,
    )  # fmt: skip
    pitcrew.resume(fresh=fresh)
    steps, evaluate = _Steps(), trainer.evaluate
    trainer.add_callback(steps)

    def evaluated(*args, **options):
        with pitcrew.section("eval"):
            return evaluate(*args, **options)

    trainer.evaluate = evaluated
    try:
        return trainer.train(resume_from_checkpoint=checkpoint.found)
    finally:
        trainer.evaluate = evaluate
        trainer.remove_callback(steps)
        pitcrew.detach()
