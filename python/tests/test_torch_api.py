"""`attach` with real torch objects, in processes of their own."""

import os
import subprocess
import sys

import pytest
from agent import Pod
from conftest import PYTHON

MODEL = """
import os, sys, torch, pitcrew_torch as pitcrew
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
def train():
    loss = model(torch.ones(2, 4)).sum(); optimizer.zero_grad(); loss.backward(); optimizer.step(); return loss
"""


@pytest.fixture
def script(tmp_path):
    def run(body, **env):
        env = dict(os.environ, PITCREW_DIR=str(tmp_path), PYTHONPATH=str(PYTHON), OMP_NUM_THREADS="1", **env)
        out = subprocess.run(
            [sys.executable, "-W", "always", "-c", MODEL + body], env=env, capture_output=True, text=True
        )
        assert out.returncode == 0, out.stderr
        return out.stdout.split(), Pod(tmp_path).ring(0), out.stderr

    return run


def test_steps_are_counted_by_the_optimizer_where_nobody_calls_step(script):
    _, ring, _ = script("pitcrew.attach(model, optimizer)\nfor _ in range(5): train()\n")
    assert ring["step"] == 5


def test_an_optimizer_that_counts_steps_may_have_other_hooks(script):
    body = """
hooks = hasattr(optimizer, "register_step_post_hook")  # not on torch 1.13
before = [optimizer.register_step_post_hook(lambda *_: None) for _ in range(hooks)]
pitcrew.attach(model, optimizer)
after = [optimizer.register_step_post_hook(lambda *_: None) for _ in range(hooks)]
for _ in range(200): train()
pitcrew.detach()
print(len(getattr(optimizer, "_optimizer_step_post_hooks", before)) == len(before) + len(after) or not hooks)
"""
    out, ring, _ = script(body)
    assert out == ["True"] and ring["step"] == 200


def test_steps_are_counted_by_calls_where_somebody_does(script):
    _, ring, _ = script(
        "pitcrew.attach(model, optimizer)\nfor _ in range(5):\n train(); train(); pitcrew.step(train(), samples=3)\n"
    )
    assert ring["step"] == 5  # though three optimizer steps came before the first call


def test_steps_are_counted_once_where_each_has_one_optimizer_step(script):
    _, ring, _ = script("pitcrew.attach(model, optimizer)\nfor _ in range(5): pitcrew.step(train())\n")
    assert ring["step"] == 5


STANDS_FOR = """
class Accelerated(torch.optim.Optimizer):  # as Accelerate's: never set up as an optimizer, and steps when it is to
    def __init__(self, inner): self.optimizer, self.now = inner, True
    def step(self, closure=None):
        if self.now: self.optimizer.step(closure)
    def zero_grad(self, set_to_none=True): self.optimizer.zero_grad()
    def state_dict(self): return self.optimizer.state_dict()
    def load_state_dict(self, state): self.optimizer.load_state_dict(state)
optimizer = Accelerated(optimizer)
"""


def test_an_optimizer_that_stands_for_another_counts_the_steps_that_are_taken(script):
    body = STANDS_FOR + "pitcrew.attach(model, optimizer)\nfor n in range(6): optimizer.now = n % 3 == 2; train()\n"
    _, ring, errors = script(body)
    assert ring["step"] == 2 and "pitcrew" not in errors


def test_of_several_optimizers_the_last_one_ends_a_step_and_all_are_saved(script, tmp_path):
    body = """
other = torch.nn.Linear(4, 1); second = torch.optim.AdamW(other.parameters(), lr=0.1)
both = torch.nn.ModuleList([model, other])
pitcrew.attach(both, [optimizer, second], checkpoint_dir=os.environ["C"], checkpoint_every=2)
start = pitcrew.resume()
for _ in range(start, 2):
    train(); other(torch.ones(2, 4)).sum().backward(); second.step()
print(start, second.state_dict()["state"][0]["step"].item(), optimizer.state_dict()["state"][0]["momentum_buffer"].sum().item())
"""  # noqa: E501
    first, ring, errors = script(body, C=str(tmp_path / "c"))
    again, _, _ = script(body, C=str(tmp_path / "c"))
    assert ring["step"] == 2 and "pitcrew" not in errors
    assert (first[0], again[0]) == ("0", "2") and first[1:] == again[1:]


def test_a_model_that_takes_no_hooks_costs_its_forward_time_only(script):
    body = "model = torch.jit.script(model)\nhook = pitcrew.attach(model, optimizer)\nfor _ in range(3): train()\n"
    _, ring, errors = script(body + "print(hook.can_save)")
    assert ring["step"] == 3 and "not supported on ScriptModules" in ring["last_error"] and "pitcrew: " in errors


@pytest.mark.parametrize("order", ["before", "after"])
def test_learning_rate_schedulers_go_on_working(script, order):
    attach, scheduler = "pitcrew.attach(model, optimizer)\n", "s = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
    body = attach + scheduler if order == "before" else scheduler + attach
    out, ring, errors = script(body + "for _ in range(3): train(); s.step()\nprint(s.get_last_lr()[0])\n")
    assert float(out[0]) == pytest.approx(1e-4) and ring["step"] == 3
    assert "lr_scheduler" not in errors  # torch warns when it does not see optimizer.step being called


def test_everything_that_has_a_state_comes_back(script, tmp_path):
    body = """
s = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
pitcrew.attach(model, optimizer, extra={"scheduler": s}, step_on="call",
               checkpoint_dir=os.environ["C"], checkpoint_every=4)
import random
start = pitcrew.resume()
for _ in range(start, int(os.environ["N"])):
    train(); s.step(); pitcrew.step(0.0)
print(start, s.last_epoch, model.weight[0, 0].item(), torch.rand(1).item(), random.random())
"""
    checkpoints = str(tmp_path / "c")
    out, _, _ = script("import random; random.seed(7)\n" + body, C=checkpoints, N="4")
    again, ring, _ = script(body, C=checkpoints, N="4")
    assert again[0] == "4" and again[1:] == out[1:]
    assert ring["resumed_step"] == 4


def test_the_default_state_can_be_loaded_by_another_number_of_ranks(script, tmp_path):
    body = 'pitcrew.attach(model, optimizer, checkpoint_dir=os.environ["C"], checkpoint_every=1)\n'
    script(body + "pitcrew.step(train())\n", C=str(tmp_path / "c"))
    out, _, errors = script(body + "print(pitcrew.resume())\n", C=str(tmp_path / "c"), WORLD_SIZE="2")
    assert out == ["1"] and "each rank chooses its checkpoint alone" in errors


def test_a_checkpoint_that_cannot_be_loaded_raises_and_does_not_train_from_nothing(script, tmp_path):
    body = 'pitcrew.attach(model, optimizer, checkpoint_dir=os.environ["C"], checkpoint_every=1)\n'
    script(body + "pitcrew.step(train())\n", C=str(tmp_path / "c"))
    script(
        "model = torch.nn.Linear(3, 1)\n"
        + body
        + "try: pitcrew.resume()\nexcept RuntimeError: pass\nelse: sys.exit(1)\n",
        C=str(tmp_path / "c"),
    )


def test_attach_never_raises(script):
    out, _, errors = script(
        "pitcrew.attach(model, optimizer, checkpoint_every='often', checkpoint_dir='c', save_fn=7)\n"
        "pitcrew.attach(None, object())\n"
        "pitcrew.attach(model, optimizer, extra=7)\n"
        "pitcrew.step(1.0)\n"
        "with pitcrew.section('eval'): pass\n"
        "print(pitcrew.resume(), 'fine')\n"
    )
    assert out == ["0", "fine"] and "not attached" in errors


def test_without_attach_everything_is_a_no_op(script):
    out, ring, _ = script(
        "pitcrew.step(1.0)\nwith pitcrew.section('eval'): pass\n"
        "pitcrew.detach()\nprint(pitcrew.resume(), pitcrew.attached())"
    )
    assert out == ["0", "None"] and ring is None


def test_importing_the_package_imports_no_torch():
    code = "import sys, pitcrew_torch, pitcrew_torch.hook, pitcrew_torch.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ, PYTHONPATH=str(PYTHON))).returncode == 0


STAGE = """
import types
megatron = types.ModuleType("megatron.core.parallel_state")
megatron.get_pipeline_model_parallel_world_size = lambda: 4
megatron.get_pipeline_model_parallel_rank = lambda: 3
"""


@pytest.mark.parametrize(
    "before, env, want",
    [
        ("", {}, ""),
        (STAGE + "sys.modules[megatron.__name__] = megatron\n", {}, "pp3"),
        (STAGE + "sys.modules[megatron.__name__] = megatron\n", {"PITCREW_ROLE": "actor"}, "actor"),
        (STAGE + "megatron.get_pipeline_model_parallel_world_size = lambda: 1\n", {}, ""),
        ("sys.modules['megatron.core.parallel_state'] = None\n", {}, ""),
        ("model.stage_id, model.num_stages = 2, 4\n", {}, "pp2"),
    ],
)
def test_a_stage_of_a_pipeline_is_a_role_of_its_own(script, before, env, want):
    _, ring, _ = script(before + "pitcrew.attach(model, optimizer); train(); pitcrew.step(); pitcrew.detach()", **env)
    assert ring["role"] == want


def test_a_role_that_is_given_goes_before_all_others(script):
    _, ring, _ = script("pitcrew.attach(model, optimizer, role='pp0/tp1'); train(); pitcrew.step()", PITCREW_ROLE="x")
    assert ring["role"] == "pp0/tp1"
