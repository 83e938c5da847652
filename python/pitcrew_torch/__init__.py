"""Pitcrew's hook for PyTorch training jobs.

    import pitcrew_torch as pitcrew

    pitcrew.attach(model, optimizer, checkpoint_dir="/ckpt", checkpoint_every=500)
    start = pitcrew.resume()
    for step in range(start, total):
        ...
        optimizer.step()
        pitcrew.step(loss)
    with pitcrew.section("eval"):
        ...

Nothing here raises into training except `resume`, nothing blocks it except a hold that the node agent armed, and
without an agent it only keeps the periodic checkpoints. A process whose checkpoint directory a later attempt has
claimed ends with exit code 76. docs/checkpoint-protocol.md has the whole story.
Importing this package does not import torch; `attach` does.
"""

import contextlib
import functools
import os
import warnings

__version__ = "0.1.0"
__all__ = [
    "ClaimRefused",
    "Fenced",
    "NoCheckpoint",
    "Unreadable",
    "attach",
    "attached",
    "data",
    "detach",
    "resume",
    "section",
    "step",
]

_hook = None
_step = None  # what `_dispatch` calls: looked up once, not each time


def attach(
    model,
    optimizer=None,
    save_fn=None,
    load_fn=None,
    *,
    checkpoint_dir=None,
    checkpoint_every=None,
    strategy=None,
    extra=None,
    any_world_size=None,
    keep=3,
    step_on="auto",
    role=None,
    workload=None,
    flops_per_step=None,
    peak_flops=None,
    phases=None,
):
    """Make this process visible to Pitcrew. Call once, on every rank, after the model and optimizer exist.

    optimizer: or a list of them; then the last one's step ends a training step, where `step` is not called.
    save_fn(ctx), load_fn(ctx): write and read a checkpoint; see SaveContext and LoadContext. Every rank is called at
        the same step, so they may be collective (FSDP, torch.distributed.checkpoint). Without them, and with strategy
        "ddp", the model, the optimizer, `extra` and the random number generators are saved; not where a rank has only
        its part of the model or the optimizer.
    checkpoint_dir: seen by all ranks and by the replacement of any node. Without it there are no checkpoints.
    checkpoint_every: steps between periodic checkpoints; None for none.
    strategy: "ddp", "hsdp", "fsdp" or "custom": told to Pitcrew; only "ddp" has a default save_fn. Default: "fsdp"
        where FSDP has the model or parameters are DTensors with parts elsewhere, else "ddp".
    extra: {name: object with state_dict and load_state_dict}, e.g. a learning rate scheduler or the position in the
    data.
        Saved and loaded for each rank, as the random number generators are, also beside a save_fn of your own.
    any_world_size: whether load_fn can read a checkpoint of another number of ranks (default: the default load_fn can).
    keep: complete checkpoints to keep; older ones are deleted.
    role: this rank's place where ranks do different work, such as "pp1/tp0"; only ranks of one role are compared.
        Default: PITCREW_ROLE, else the stage of a pipeline by Megatron or DeepSpeed, else all do the same.
    workload: what runs, as "model=gpt-124m;tokens=524288;seq=1024" (tokens of the whole job in a step, sequence length;
        add whatever else makes steps longer or shorter, such as ";precision=fp8"): runs of one workload on the same
        kind of GPUs are compared with each other. At most 127 bytes. Default: PITCREW_WORKLOAD, else with no other run.
    step_on: what ends a step: "call" (of `step`), "optimizer" (its step), "auto" (calls, once the first has come).
    flops_per_step: FLOPs of this rank's share of a step (6 x parameters x tokens for a dense transformer, without
        recomputation); then the MFU is told. peak_flops: of its accelerator, a second; known for some GPUs.
    phases: data wait, forward, backward, optimizer and the wait for other ranks are measured in one of so many steps;
        None for as many as the length of a step allows (one of 256 below 5 ms, of 64 below 20 ms, of 16 below 80 ms, of
        4 below 320 ms, else each), 0 for none.
    """
    global _hook, _step
    try:
        from . import torchstate

        detach()
        _hook = _make(
            model, optimizer, save_fn, load_fn, checkpoint_dir, checkpoint_every, strategy, extra, any_world_size, keep,
            role, workload, flops_per_step, peak_flops,
        )  # fmt: skip
        _hook.steps.instead = functools.partial(_instead_of, _hook)
        optimizers = [torchstate.stepping(each) for each in torchstate.optimizers(optimizer)]
        _measure(_hook, model, optimizers, phases)
        if optimizers and step_on != "call":
            _try(_hook, _count, _hook, optimizers[-1], step_on)
        _try(_hook, _accumulate, _hook, optimizers)
        _step = _first_step
    except Exception as error:
        warnings.warn("pitcrew: not attached: %s: %s" % (type(error).__name__, error), RuntimeWarning, stacklevel=2)
    return _hook


def _make(
    model, optimizer, save_fn, load_fn, checkpoint_dir, checkpoint_every, strategy, extra, any_world_size, keep,
    role, workload, flops_per_step, peak_flops,
):  # fmt: skip
    import torch

    from . import torchstate
    from .exchange import Alone, StoreExchange
    from .hook import Hook

    parted = torchstate.parted(model, optimizer)
    strategy = strategy or ("fsdp" if parted else "ddp")
    default = save_fn is None and load_fn is None and strategy == "ddp" and not parted
    if default:
        state = torchstate.DataParallelState(model, optimizer, extra)
        save_fn, load_fn = state.save, state.load
    own = None if default else torchstate.RankState(extra)

    index, uuid, peak = torchstate.device_of(model), "", 0.0
    if index is not None:
        uuid, peak = torchstate.about_device(index)

    def exchange():
        store = torchstate.default_store()
        if store is not None:
            return StoreExchange(store, *torchstate.ranks(), hook.attempt)
        if hook.world_size > 1:
            hook._note("resume() before init_process_group: each rank chooses its checkpoint alone")
        return Alone()

    hook = Hook(
        save_fn and torchstate.synchronous(save_fn),
        load_fn,
        checkpoint_dir=checkpoint_dir,
        checkpoint_every=checkpoint_every,
        strategy=strategy,
        any_world_size=default if any_world_size is None else any_world_size,
        keep=keep,
        exchange=exchange,
        distributed=torchstate.ranks,
        also=own and own.save,
        also_load=own and own.load,
        torch_version=torch.__version__,
        gpu=uuid,
        role=os.environ.get("PITCREW_ROLE") or torchstate.pipeline_stage(model) if role is None else role,
        workload=workload,
    )
    if parted and checkpoint_dir and not hook.can_save:
        hook.trouble("no checkpoints without save_fn and load_fn: %s, of which this rank has only its part" % parted)
    hook.ring.set("flops_per_step", float(flops_per_step or 0.0))
    hook.ring.set("peak_flops", float(peak_flops or peak))
    if index is not None:
        from .devicetime import DeviceProbe

        hook.steps.device = DeviceProbe(torchstate.CudaDevice(index), hook.ring, hook.trouble)
    from . import flight

    hook.collectives = flight.read
    return hook


def _try(hook, call, *args):
    """What cannot be followed costs its own values only."""
    try:
        call(*args)
    except Exception as error:
        hook.trouble(error)


def _count(hook, optimizer, step_on):
    from .phases import count_steps

    waiting = []  # "auto": the first optimizer step waits here for a call of `step` to say who counts

    def counts():
        if hook.counted_by_call:
            return
        if step_on == "auto" and not waiting:
            waiting.append(True)
            return
        if waiting and waiting[0]:
            waiting[0] = False
            hook.step_of_optimizer()
        hook.step_of_optimizer()

    def stop():
        no_more()
        hook.steps.probes.counted_by_optimizer(False)

    no_more = count_steps(optimizer, counts)
    hook.steps.probes.counted_by_optimizer(True)
    hook.count_by_optimizer(stop)


def _accumulate(hook, optimizers):
    from .accumulation import Accumulation

    parameters = [p for each in optimizers for group in getattr(each, "param_groups", ()) for p in group["params"]]
    if parameters:
        hook.accumulation = Accumulation(parameters, hook.take_back, hook.trouble)
        hook.at_end.append(hook.accumulation.detach)


def _measure(hook, model, optimizers, phases):
    from . import torchstate
    from .phases import Phases

    steps = hook.steps
    probes = Phases(steps.phases, 1 << 62 if phases == 0 else phases, steps.device)
    hook.at_end.append(probes.detach)
    if phases != 0:
        for optimizer in optimizers:
            _try(hook, probes.follow_optimizer, optimizer)
        _try(hook, probes.follow_data_loaders)
        if model is not None:
            _try(hook, probes.follow_forward, model)
        alone = hook.world_size < 2 or not hasattr(model, "modules")
        fsdp = torchstate.by_fsdp(model)
        _try(hook, probes.follow_backward, None if alone or fsdp else model)
        if fsdp and not alone and steps.device is None:
            _try(hook, probes.follow_collectives)
    steps.probes = probes


def attached():
    """The hook of this process, or None."""
    return _hook


def step(loss=None, step=None, grad_norm=None, samples=0, tokens=0):
    """A training step has ended, on every rank equally often.

    loss, grad_norm: floats or tensors; those on a GPU are read now and then without waiting for them. step: the number
    of steps completed, where you count yourself. samples or tokens: how many this rank processed in the step, as a
    number: one that is on a GPU is not read. Name all but the loss.
    """
    if _step is not None:
        _step(loss, step, grad_norm, samples, tokens)


_dispatch = step  # `step` itself becomes the hook's own function while one is attached: a call less


def detach():
    """Training is over in this process: agents hear it, and checkpoints are no longer made. Also done at exit."""
    global _hook, _step, step
    hook, _hook, _step, step = _hook, None, None, _dispatch
    if hook is not None:
        hook.close()


def _first_step(*values):
    global _step
    _hook.count_by_call()
    _step = _learning_step if _hook.accumulation is not None else _hook.step
    _settle()
    _step(*values)


def _learning_step(*values):
    """A call of `step` while it is not known yet, or known, that some of them end no step."""
    accumulation = _hook.accumulation
    if not accumulation.half():
        _hook.step(*values)
    if accumulation.over:
        global _step
        accumulation.detach()
        _step = _hook.step
        _settle()


def _settle():
    """`step` itself becomes the hook's own function where there is nothing left to do before it."""
    global step
    if _step is not None and _step == _hook.step:
        step = _step


def _instead_of(closed, *values):
    """Somebody has kept the function of a hook that is closed: the call is for the hook that came after it."""
    if _step is not None and _step is not closed.step:
        _step(*values)


def data(iterable):
    """for batch in pitcrew.data(batches): ... measures how long training waits for data. A torch DataLoader needs no
    such call: it is measured anyway."""
    return iterable if _hook is None or _hook.steps.probes is None else _hook.steps.probes.data(iterable)


def section(name):
    """with section("eval"): ... — what runs inside is not judged as a training step. "checkpoint", "eval" and "setup"
    are known by name; any other name is shown as it is."""
    return _hook.section(name) if _hook is not None else contextlib.nullcontext()


def resume(step=0, *, fresh=False, read_only=False):
    """Load the newest sound checkpoint, the same one on every rank, and give the step to go on from.

    Call after init_process_group, so that one chooser decides for all ranks. It also claims checkpoint_dir for this
    attempt: whoever claimed it before can no longer write there.

    step: where training starts if there is no checkpoint, such as one that you loaded yourself.
    fresh: start from nothing although checkpoints exist. Those of earlier runs stay, and are not preferred again; those
        that this run has written since, in an earlier attempt, are used.
    read_only: for evaluation: nothing on the storage is touched, nothing is claimed, and this process saves nothing.

    Raises NoCheckpoint where checkpoints exist and none can be used, Unreadable where the storage fails, ClaimRefused
    where the directory belongs to a later attempt or another job, Fenced where a later attempt claims it meanwhile, and
    what load_fn raises."""
    return _hook.resume(step, fresh, read_only) if _hook is not None else step


def __getattr__(name):
    """What `resume` raises, without importing it until it is asked for."""
    if name in ("ClaimRefused", "Fenced"):
        from . import claims

        return getattr(claims, name)
    if name in ("NoCheckpoint", "Unreadable"):
        from . import chooser

        return getattr(chooser, name)
    raise AttributeError("module %r has no attribute %r" % (__name__, name))
