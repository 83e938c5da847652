"""What the parts of a step took, with real torch objects in processes of their own."""

import json
import os
import subprocess
import sys

import pytest
from conftest import PYTHON, outputs, two_ranks

START = """
import os, sys, time, json, copy, pickle, torch, pitcrew_torch as pitcrew
from pitcrew_torch import ring
torch.set_num_threads(1)
def slow(seconds):
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return x.clone()
        @staticmethod
        def backward(ctx, g): time.sleep(seconds); return g
    return Slow.apply
class Model(torch.nn.Module):
    def __init__(self, forward=0.0, backward=0.0):
        super().__init__()
        self.layer, self.sleep, self.slow = torch.nn.Linear(4, 1), forward, backward
    def forward(self, x):
        time.sleep(self.sleep)
        return slow(self.slow)(self.layer(x)).sum()
class Sleepy(torch.optim.SGD):
    def step(self, closure=None): time.sleep(0.004); return super().step(closure)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): time.sleep(0.005); return torch.ones(4)
def records():
    found = ring.parse(bytes(pitcrew.attached().ring._buffer))["records"]
    return [{k: r[k] / 1e9 if k.endswith("_ns") else r[k] for k in r} for r in found]
def show(): print(json.dumps(records()))
"""


@pytest.fixture
def script(tmp_path):
    def run(body, **env):
        env = dict(os.environ, PITCREW_DIR=str(tmp_path), PYTHONPATH=str(PYTHON), OMP_NUM_THREADS="1", **env)
        out = subprocess.run(
            [sys.executable, "-W", "error", "-c", START + body], env=env, capture_output=True, text=True, timeout=120
        )
        assert out.returncode == 0, out.stderr
        return out.stdout

    return run


def test_each_phase_is_what_that_part_of_the_step_took(script):
    out = script("""
model = Model(0.002, 0.003); optimizer = Sleepy(model.parameters(), lr=0.1)
pitcrew.attach(model, optimizer, step_on="call", phases=1)
for x in torch.utils.data.DataLoader(Data()):
    time.sleep(0.01)  # nobody's
    loss = model(x); optimizer.zero_grad(); loss.backward(); optimizer.step(); pitcrew.step(loss)
show()
""")
    for record in json.loads(out)[1:]:  # the first also sets torch up
        for name, least in (("data_ns", 0.005), ("forward_ns", 0.002), ("backward_ns", 0.003), ("optimizer_ns", 0.004)):
            assert least <= record[name] < least + 0.2, (name, record)
        assert record["duration_ns"] >= 0.024
        assert record["comm_ns"] == 0  # one rank waits for nobody


def test_phases_of_micro_batches_add_up_to_their_step(script):
    out = script("""
model = Model(0.002); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pitcrew.attach(model, optimizer, step_on="call", phases=1)
for _ in range(2):
    for _ in range(3): model(torch.ones(4)).backward()
    optimizer.step(); pitcrew.step()
with torch.no_grad(): model(torch.ones(4))  # an evaluation that nobody announced
with pitcrew.section("eval"): model(torch.ones(4))
pitcrew.step()
show()
""")
    one, two, three = json.loads(out)
    assert one["forward_ns"] >= 0.006 and two["forward_ns"] >= 0.006
    assert three["forward_ns"] == 0


def test_what_an_optimizers_closure_takes_is_not_the_optimizers(script):
    """As Lightning trains: forward and backward run inside optimizer.step()."""
    out = script("""
model = Model(0.02, 0.03); optimizer = Sleepy(model.parameters(), lr=0.1)
pitcrew.attach(model, optimizer, step_on="call", phases=1)
def closure(): optimizer.zero_grad(); loss = model(torch.ones(4)); loss.backward(); return loss
for _ in range(4): optimizer.step(closure); pitcrew.step()
show()
""")
    best = min(json.loads(out)[1:], key=lambda record: record["duration_ns"])
    assert best["forward_ns"] >= 0.02 and best["backward_ns"] >= 0.03 and 0.004 <= best["optimizer_ns"] < 0.02, best


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_forward_that_backward_repeats_is_told_once(script, reentrant):
    out = script(
        """
from torch.utils.checkpoint import checkpoint
model = Model(0.02, 0.03); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pitcrew.attach(model, optimizer, step_on="call", phases=1)
for _ in range(4):
    x = slow(0.02)(torch.ones(4, requires_grad=True))
    checkpoint(model, x, use_reentrant=%s).backward(); optimizer.step(); pitcrew.step()
show()
"""
        % reentrant
    )
    best = min(json.loads(out)[1:], key=lambda record: record["duration_ns"])
    assert best["backward_ns"] >= 0.05, best  # the model's own, and what came before it
    assert best["forward_ns"] + best["backward_ns"] <= best["duration_ns"], best


def test_all_ranks_measure_the_same_steps_whenever_they_began_to(script):
    out = script("""
model = Model(0.0, 0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pitcrew.attach(model, optimizer, phases=4, step_on="call")
for step in range(6, 20): model(torch.ones(4)).backward(); optimizer.step(); pitcrew.step(step=step + 1)
show()
""")
    measured = {r["step"] for r in json.loads(out) if r["step"] > 7 and r["forward_ns"]}
    assert measured == {8, 12, 16, 20}
    for name in ("backward_ns", "optimizer_ns"):
        assert {r["step"] for r in json.loads(out) if r["step"] > 7 and r[name]} == measured


def test_no_probe_is_there_in_a_step_that_is_not_measured(script):
    script("""
from torch.utils.data.dataloader import _BaseDataLoaderIter as Iter
model = Model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def there(): return [
    bool(model._forward_hooks or model._forward_pre_hooks), torch.autograd.backward != before[0],
    Iter.__next__ != before[1],
    optimizer.step != before[2] or bool(getattr(optimizer, "_optimizer_step_pre_hooks", None)),
    bool(getattr(optimizer, "_optimizer_step_post_hooks", None))]
before = torch.autograd.backward, Iter.__next__, optimizer.step
pitcrew.attach(model, optimizer, phases=4)
for step in range(1, 10):
    found, on = there(), step in (1, 4, 8)
    assert found[:4] == [on] * 4 and found[4] <= on, (step, found)
    model(torch.ones(4)).backward(); optimizer.step(); pitcrew.step(0.5)
assert [r["step"] for r in records() if r["forward_ns"] and r["backward_ns"] and r["optimizer_ns"]] == [1, 4, 8]
""")


def test_what_others_put_around_backward_meanwhile_is_measured_and_left_to_them(script):
    script("""
model = Model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
plain = torch.autograd.backward
def step(): model(torch.ones(4)).backward(); optimizer.step(); pitcrew.step(0.5)
calls = []
def around(inner):
    def theirs(*a, **k): calls.append(1); return inner(*a, **k)
    return theirs
pitcrew.attach(model, optimizer, phases=4)
step(); step()
torch.autograd.backward = theirs = around(torch.autograd.backward)  # in a step that is not measured
step(); step(); step()
assert torch.autograd.backward is theirs and len(calls) == 3
torch.autograd.backward = plain
step(); step()
torch.autograd.backward = around(torch.autograd.backward)  # in one that is
step(); step(); step(); step(); step()
pitcrew.detach(); step()
assert len(calls) == 9, calls
""")


def test_no_phases_costs_no_probes(script):
    script("""
model = Model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pitcrew.attach(model, optimizer, phases=0)
assert not model._forward_hooks and torch.autograd.backward.__module__ == "torch.autograd"
for _ in range(4): model(torch.ones(4)).backward(); optimizer.step()
assert [r["step"] for r in records()] == [1, 2, 3, 4] and not any(r["forward_ns"] for r in records())
""")


def test_any_iterable_can_be_measured_and_a_nested_loader_counts_once(script):
    out = script("""
class Nested(torch.utils.data.IterableDataset):
    def __iter__(self): return iter([b for b in torch.utils.data.DataLoader(Data())][:2])
assert list(pitcrew.data([1, 2])) == [1, 2]  # nobody is attached: nothing is measured
pitcrew.attach(Model(), step_on="call", phases=1)
for _ in pitcrew.data(torch.utils.data.DataLoader(Nested(), batch_size=None)): pitcrew.step()
show()
""")
    one, two = json.loads(out)
    assert 0.02 <= one["data_ns"] <= one["duration_ns"] + 0.001 and two["data_ns"] < 0.02


def test_copies_and_pickles_of_a_model_have_no_probes(script):
    script("""
model = Model(); pitcrew.attach(model, step_on="call", phases=1)
for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
    other(torch.ones(4)); assert pitcrew.attached().phases == [0] * 5, pitcrew.attached().phases
    assert list(other.state_dict()) == list(model.state_dict())
model(torch.ones(4)); assert pitcrew.attached().phases[1] > 0
""")


def test_detach_takes_everything_away(script):
    script("""
from torch.utils.data.dataloader import _BaseDataLoaderIter as Iter
model = Model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = torch.autograd.backward, Iter.__next__, optimizer.step
pitcrew.attach(model, optimizer); pitcrew.attach(model, optimizer)
assert torch.autograd.backward is not before[0]
pitcrew.detach()
assert (torch.autograd.backward, Iter.__next__, optimizer.step) == before
assert not model._forward_hooks and not model._forward_pre_hooks
pitcrew.attach(model, optimizer)
ours = torch.autograd.backward
torch.autograd.backward = theirs = lambda *a, **k: ours(*a, **k)
pitcrew.detach()
assert torch.autograd.backward is theirs  # somebody else's wrapper is not ours to take away
model(torch.ones(4)).backward(); optimizer.step()
""")


def test_errors_of_training_pass_through_the_probes_unchanged(script):
    script("""
model = Model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pitcrew.attach(model, optimizer, step_on="call", phases=1)
loss = model(torch.ones(4)); loss.backward()
try: loss.backward()
except RuntimeError as error: assert "second time" in str(error)
else: sys.exit(1)
model.sleep = "nonsense"
try: model(torch.ones(4))
except TypeError: pass
else: sys.exit(1)
model.sleep = 0.0; model(torch.ones(4)).backward(); optimizer.step(); pitcrew.step()
assert 0 < records()[0]["forward_ns"] < 1 and records()[0]["backward_ns"] < 1
""")


def test_a_loss_that_is_not_finite_is_counted_and_flops_are_told(script):
    script("""
pitcrew.attach(Model(), step_on="call", phases=1, flops_per_step=6e9, peak_flops=3e12)
for value in (1.0, float("nan"), torch.tensor(float("inf")), torch.ones(1, requires_grad=True)):
    pitcrew.step(value, tokens=7)
pitcrew.step(1.0, grad_norm=float("nan"))
header = ring.parse(bytes(pitcrew.attached().ring._buffer))["header"]
assert header["nonfinite"] == 3 and header["flops_per_step"] == 6e9 and header["peak_flops"] == 3e12, header
assert header["flags"] & ring.FLAG_TOKENS and records()[0]["samples"] == 7
assert [r["flags"] for r in records()] == [1, 5, 5, 1, 3]
""")


def test_peak_flops_are_known_by_the_whole_word(script):
    script("""
from pitcrew_torch.torchstate import peak_flops
assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12 and peak_flops("NVIDIA H100 PCIe") == 756e12
assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12 and peak_flops("NVIDIA L40S") == 362e12
assert peak_flops("NVIDIA GeForce RTX 4090") == 0.0 and peak_flops("") == 0.0
""")


DDP = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=int(os.environ["RANK"]), world_size=2)
rank = dist.get_rank()
class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), torch.nn.Linear(1, 1)
        self.late = 0.0
    def forward(self, x): return slow(self.late)(self.b(torch.tanh(self.a(x))) + 0 * self.unused(x[..., :1])).sum()
inner = Two()
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pitcrew.attach(model, optimizer, step_on="call", phases=1)
"""


def by_ddp(tmp_path, body):
    return outputs(two_ranks(tmp_path, START + DDP + body))


def test_the_rank_that_others_wait_for_is_the_one_that_waits_least(tmp_path):
    """A synchronous job steps at one pace. Only the wait for gradients tells who holds it up."""
    outs = by_ddp(
        tmp_path,
        """
for step in range(12):
    inner.late = 0.1 if rank == 1 and step >= 2 else 0.0
    model(torch.ones(4)).backward(); optimizer.step(); pitcrew.step()
dist.barrier(); show()
""",
    )
    fast, slow = (json.loads(out)[4:] for out in outs)
    middle = len(fast) // 2
    waits = [sorted(r["comm_ns"] for r in rank)[middle] for rank in (fast, slow)]
    durations = [sorted(r["duration_ns"] for r in rank)[middle] for rank in (fast, slow)]
    assert waits[0] > 0.06 and 0 < waits[1] < waits[0] / 2, waits
    assert 0.5 < durations[0] / durations[1] < 2, durations


def test_ranks_that_wait_elsewhere_than_in_backward_are_not_said_to_wait(tmp_path):
    outs = by_ddp(
        tmp_path,
        """
plain = torch.nn.Linear(4, 1)
pitcrew.attach(plain, step_on="call", phases=1)
for _ in range(4):
    plain(torch.ones(4)).sum().backward(); pitcrew.step()
    for parameter in plain.parameters(): dist.all_reduce(parameter.grad)
print([r["comm_ns"] for r in records()])
pitcrew.attach(inner, step_on="call", phases=1)  # as Lightning shows it: somebody else has put it into DDP
for _ in range(4): model(torch.ones(4)).backward(); pitcrew.step()
dist.barrier(); print([r["comm_ns"] > 0 for r in records()])
""",
    )
    for out in outs:
        assert out.splitlines() == ["[0.0, 0.0, 0.0, 0.0]", "[False, True, True, True]"]


def test_another_path_through_the_model_is_learnt_again(tmp_path):
    outs = by_ddp(
        tmp_path,
        """
for _ in range(3): model(torch.ones(4)).backward(); pitcrew.step()
inner.a.requires_grad_(False)
model = torch.nn.parallel.DistributedDataParallel(inner)
for _ in range(4): model(torch.ones(4)).backward(); pitcrew.step()
dist.barrier(); print([r["comm_ns"] > 0 for r in records()])
""",
    )
    for out in outs:
        assert out.strip() == "[False, True, True, False, False, True, True]"


def has_compile():
    code = "import torch; assert hasattr(torch.nn.Module(), 'compile')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compile(), reason="this torch compiles no modules")
def test_a_compiled_model_stays_one_graph_with_the_probes_on_it(script):
    script("""
import warnings; warnings.simplefilter("ignore")
import torch._dynamo
class Net(torch.nn.Module):
    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(4, 1)
    def forward(self, x): return self.layer(x).sum()
for way in ("in place", "wrapped", "before"):
    model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if way == "before": model = torch.compile(model, backend="eager", fullgraph=True)
    pitcrew.attach(model, optimizer, step_on="call", phases=1)
    if way == "in place": model.compile(backend="eager", fullgraph=True)
    if way == "wrapped": model = torch.compile(model, backend="eager", fullgraph=True)
    torch._dynamo.utils.counters.clear()
    for _ in range(3): model(torch.ones(4)).backward(); optimizer.step(); pitcrew.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, (way, torch._dynamo.utils.counters)
    assert records()[-1]["backward_ns"] > 0 and records()[-1]["optimizer_ns"] > 0
    pitcrew.detach(); torch._dynamo.reset()
""")
