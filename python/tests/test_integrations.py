"""Real Hugging Face and Lightning trainers, killed in the middle: they must end as if nothing had happened.

They need the frameworks, which `make test-full` installs beside a current torch.
"""

import json
import os
import subprocess
import sys

import pytest
from conftest import PYTHON

HF = """
import json, os, sys, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from pitcrew_torch.integrations.transformers import train

class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, k):
        g = torch.Generator().manual_seed(k)
        return {"x": torch.randn(8, generator=g), "y": torch.randn(1, generator=g)}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    def forward(self, x, y):
        return {"loss": torch.nn.functional.mse_loss(self.body(x), y)}

class Log(TrainerCallback):
    def on_step_end(self, args, state, control, model, **_):
        weights = sum(float(p.double().sum()) for p in model.parameters())
        line = {"step": state.global_step, "weights": weights.hex()}
        with open("log-%s" % os.environ.get("RANK", "0"), "a") as f: print(json.dumps(line), file=f)
        if state.global_step == int(os.environ["KILL_AT"]): os.kill(os.getpid(), 9)

torch.manual_seed(3)
args = TrainingArguments(
    output_dir="out", max_steps=25, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=0.01,
    save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=3,
)
trainer = Trainer(model=Model(), args=args, train_dataset=Data(), callbacks=[Log()])
train(trainer, checkpoint_dir="ckpt", checkpoint_every=5)
"""

LIGHTNING = """
import json, os, torch, lightning
from pitcrew_torch.integrations.lightning import fit

class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, k):
        g = torch.Generator().manual_seed(k)
        return torch.randn(8, generator=g), torch.randn(1, generator=g)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    def training_step(self, batch, k):
        return torch.nn.functional.mse_loss(self.body(batch[0]), batch[1])
    def validation_step(self, batch, k):
        self.log("val", torch.nn.functional.mse_loss(self.body(batch[0]), batch[1]))
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

class Log(lightning.Callback):
    def on_train_batch_end(self, trainer, module, *_):
        weights = sum(float(p.double().sum()) for p in module.parameters())
        line = {"step": trainer.global_step, "weights": weights.hex(), "epoch": trainer.current_epoch}
        with open("log-%s" % os.environ.get("RANK", "0"), "a") as f: print(json.dumps(line), file=f)
        if trainer.global_step == int(os.environ["KILL_AT"]): os.kill(os.getpid(), 9)

ranks = int(os.environ.get("WORLD_SIZE", 1))
torch.manual_seed(3)
rank = int(os.environ.get("RANK", 0))
sampler = torch.utils.data.distributed.DistributedSampler(Data(), num_replicas=ranks, rank=rank, seed=3)
data = torch.utils.data.DataLoader(Data(), batch_size=4, sampler=sampler)
trainer = lightning.Trainer(
    max_steps=25, accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[Log()],
    accumulate_grad_batches=2, num_sanity_val_steps=0, limit_val_batches=2,
)
val = torch.utils.data.DataLoader(Data(), batch_size=4)
fit(trainer, Model(), data, val, checkpoint_dir="ckpt", checkpoint_every=5)
"""

SCRIPTS = {"transformers": HF, "lightning": LIGHTNING}


def ended(tmp_path, name, ranks, kill_at, attempt):
    """Exit codes of the ranks of one attempt, ended within two minutes."""
    tmp_path.mkdir(exist_ok=True)
    running = []
    for rank in range(ranks):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PITCREW_", "TORCHELASTIC"))}
        env.update(
            PYTHONPATH=str(PYTHON), KILL_AT=str(kill_at), PITCREW_ATTEMPT=str(attempt), PITCREW_JOB_UID="j",
            OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PYTHONWARNINGS="ignore", HF_HUB_OFFLINE="1",
        )  # fmt: skip
        if ranks > 1:
            env.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29400 + os.getpid() % 1000), TORCHELASTIC_RUN_ID="j",
                GROUP_RANK="0",
            )  # fmt: skip
        out = open(tmp_path / ("out-%d-%d" % (attempt, rank)), "wb")
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", SCRIPTS[name]], cwd=tmp_path, env=env, stdout=out, stderr=subprocess.STDOUT
            )
        )
    try:
        return [process.wait(120) for process in running]
    finally:
        for process in running:
            process.kill()


def log(tmp_path, rank):
    """{step: last line of that step}."""
    lines = (json.loads(line) for line in (tmp_path / ("log-%d" % rank)).read_text().splitlines())
    return {line["step"]: line for line in lines}


def told(tmp_path):
    return "\n".join("%s:\n%s" % (p.name, p.read_text()[-3000:]) for p in sorted(tmp_path.glob("out-*")))


@pytest.mark.parametrize("kill_at", [3, 13, 20])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_training_that_is_killed_ends_with_the_same_weights_on_the_same_batches(tmp_path, name, ranks, kill_at):
    """Before: weights of step 30, data from the beginning, `global_step` 0."""
    pytest.importorskip(name)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert ended(whole, name, ranks, -1, 0) == [0] * ranks, told(whole)
    assert ended(killed, name, ranks, kill_at, 0) == [-9] * ranks, told(killed)
    before = log(killed, 0)
    assert ended(killed, name, ranks, -1, 1) == [0] * ranks, told(killed)
    for rank in range(ranks):
        assert log(killed, rank) == log(whole, rank), told(killed)
    repeated = len((killed / "log-0").read_text().splitlines()) - len((whole / "log-0").read_text().splitlines())
    assert max(before) == kill_at and repeated < 12, "it began at the newest checkpoint"


def test_lightnings_own_launcher_is_refused_with_the_remedy(tmp_path):
    pytest.importorskip("lightning")
    env = {**os.environ, "PYTHONPATH": str(PYTHON), "KILL_AT": "-1"}
    code = LIGHTNING.replace('devices=ranks, strategy="ddp" if ranks > 1 else "auto"', 'devices=2, strategy="ddp"')
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "start them with torchrun or `python -m pitcrew_torch.run`" in done.stderr
