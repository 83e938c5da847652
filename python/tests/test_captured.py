"""What a checkpoint captures with real torch objects: each rank's own state, compiled models, half-accumulated
steps."""

import pytest
from conftest import outputs, two_ranks
from test_torch_api import script  # noqa: F401

RANKS = """
import os, random, sys, torch, torch.distributed as dist, pitcrew_torch as pitcrew
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=int(os.environ["RANK"]), world_size=2)
rank = dist.get_rank()
torch.manual_seed(7)
class Loader:
    position = 0
    def state_dict(self): return {"position": self.position}
    def load_state_dict(self, state): self.position = state["position"]
loader = Loader()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def save(ctx):
    if ctx.is_writer: torch.save(model.state_dict(), os.path.join(ctx.directory, "mine.pt"))
    return ["mine.pt"] if ctx.is_writer else []
def load(ctx): model.load_state_dict(torch.load(os.path.join(ctx.directory, "mine.pt")))
own = (save, load) if os.environ["OWN"] == "1" else ()
pitcrew.attach(model, optimizer, *own, extra={"loader": loader}, checkpoint_dir=os.environ["C"], checkpoint_every=5,
               step_on="call")
start = pitcrew.resume()
if start == 0:
    torch.manual_seed(100 + rank); random.seed(200 + rank)
    for _ in range(5):
        loader.position += 10 + 1000 * rank
        torch.rand(1); random.random(); pitcrew.step(0.0)
print(start, loader.position, torch.rand(1).item(), random.random())
dist.barrier(); pitcrew.detach(); dist.barrier()
"""


@pytest.mark.parametrize("own", ["0", "1"], ids=["default save_fn", "custom save_fn"])
def test_extra_and_random_numbers_are_each_ranks_own(tmp_path, own):
    """Before, rank 0 alone saved `extra`: rank 1's loader went back to rank 0's position. A custom save_fn lost
    both."""
    env = {"C": str(tmp_path / "c"), "OWN": own}
    first = [out.split() for out in outputs(two_ranks(tmp_path, RANKS, **env))]
    (tmp_path / "store").unlink(missing_ok=True)
    again = [out.split() for out in outputs(two_ranks(tmp_path, RANKS, **env))]
    assert [a[0] for a in again] == ["5", "5"] and [f[0] for f in first] == ["0", "0"]
    assert [f[1] for f in first] == ["50", "5050"]
    assert [a[1:] for a in again] == [f[1:] for f in first]


WITHOUT_RANK = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp, pitcrew_torch as pitcrew
def main(n):
    dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=n, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = pitcrew.attach(model, optimizer, checkpoint_dir=os.environ["C"], checkpoint_every=2)
    start = pitcrew.resume()
    os.write(1, b"%d %d %d\\n" % (hook.rank, hook.world_size, start))  # one write: two processes share the pipe
    for _ in range(2): model(torch.ones(1, 4)).sum().backward(); optimizer.step(); pitcrew.step(0.0)
    dist.barrier(); pitcrew.detach(); dist.barrier()
if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""


def test_processes_of_mp_spawn_are_two_ranks(tmp_path):
    """Before, both said that they were rank 0 of 1 and wrote the same files."""
    import os
    import subprocess
    import sys

    from conftest import PYTHON

    (tmp_path / "train.py").write_text(WITHOUT_RANK)
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env.update(PYTHONPATH=str(PYTHON), STORE=str(tmp_path / "store"), C=str(tmp_path / "c"), GLOO_SOCKET_IFNAME="lo")
    for start in ("0", "2"):
        out = subprocess.run([sys.executable, str(tmp_path / "train.py")], env=env, capture_output=True, text=True)
        assert sorted(out.stdout.splitlines()) == ["0 2 " + start, "1 2 " + start], out.stderr
        assert "pitcrew: no checkpoints" not in out.stderr
        (tmp_path / "store").unlink(missing_ok=True)
    manifest = (tmp_path / "c" / "step-2.attempt-0" / "MANIFEST.json").read_text()
    assert "rank-1.state.pt" in manifest and '"world_size":2' in manifest


COMPILED = """
def compiled(module):  # what torch.compile gives, without the compiler
    class Optimized(torch.nn.Module):
        def __init__(self, inner):
            super().__init__(); self._orig_mod = inner
        def forward(self, *a): return self._orig_mod(*a)
    return Optimized(module)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
how = os.environ["HOW"]
if how == "whole": net = compiled(net)
if how == "part": net[0] = compiled(net[0])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
pitcrew.attach(net, optimizer, checkpoint_dir=os.environ["C"], checkpoint_every=1)
start = pitcrew.resume()
if start == 0:
    net(torch.ones(2, 4)).sum().backward(); optimizer.step(); pitcrew.step(0.0)
pitcrew.detach()
print(start, sum(p.sum().item() for p in net.parameters()))
"""


@pytest.mark.parametrize("first", ["none", "whole", "part"])
def test_a_checkpoint_saved_compiled_is_resumed_uncompiled_and_the_reverse(script, tmp_path, first):  # noqa: F811
    out = [script(COMPILED, C=str(tmp_path / "c"), HOW=how)[0] for how in (first, "none", "whole", "part")]
    assert [o[0] for o in out] == ["0", "1", "1", "1"] and len({o[1] for o in out}) == 1


def test_an_asynchronous_save_inside_save_fn_is_refused_in_so_many_words(script, tmp_path):  # noqa: F811
    body = """
try:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import async_save
except ImportError:
    import types
    dcp = None
from concurrent.futures import Future
class Save:
    def __init__(self, how): self.how = how
    def __call__(self, ctx):
        if self.how == "future": return Future()
        if dcp is None: return Future()
        (dcp.async_save if self.how == "module" else async_save)({"x": torch.ones(2)}, checkpoint_id=ctx.directory)
for how in ("future", "module", "name"):
    hook = pitcrew.attach(model, optimizer, Save(how), lambda ctx: None, checkpoint_dir=os.environ["C"])
    print("async_save inside save_fn is not supported" in hook._saver.asked(5, ()).get("error", ""))
if dcp is not None: print(dcp.async_save is async_save)
"""
    out, _, errors = script(body, C=str(tmp_path / "c"))
    assert out[:3] == ["True"] * 3 and set(out) == {"True"}, errors


ACCUMULATE = """
hook = pitcrew.attach(model, optimizer, step_on="call", checkpoint_dir=os.environ["C"], checkpoint_every=2)
optimizer.zero_grad()
for n in range(%d):
    model(torch.ones(2, 4)).sum().backward()
    if %s: optimizer.step(); optimizer.zero_grad(%s)
    pitcrew.step(0.0)
print(hook.step_count, pitcrew.step == hook.step)
pitcrew.detach()
"""


@pytest.mark.parametrize("to_none", ["True", "False"])
def test_a_half_accumulated_step_is_not_a_step(script, tmp_path, to_none):  # noqa: F811
    """Before, a checkpoint between two micro steps lost the gradients gathered so far."""
    out, _, errors = script(ACCUMULATE % (24, "n % 4 == 3", to_none), C=str(tmp_path / "c"))
    assert out == ["6", "False"] and "end no step" in errors
    assert sorted(p.name for p in (tmp_path / "c").glob("step-*")) == ["step-%d.attempt-0" % n for n in (2, 4, 6)]


def test_steps_without_accumulation_cost_nothing_after_a_while(script, tmp_path):  # noqa: F811
    out, _, errors = script(ACCUMULATE % (70, "True", "True"), C=str(tmp_path / "c"))
    assert out == ["70", "True"] and "end no step" not in errors


def test_an_optimizer_whose_work_cannot_be_seen_costs_no_step(script, tmp_path):  # noqa: F811
    body = ACCUMULATE % (100, "False", "True")
    out, _, errors = script(body, C=str(tmp_path / "c"))
    assert out == ["100", "True"] and "end no step" not in errors
