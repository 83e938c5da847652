"""What the hook needs from torch: the state of a DDP job, its ranks, the accelerator.

Needs torch >= 1.13 and nothing else (no numpy). Uses no collective and synchronises no device.
"""

import functools
import os
import random
import sys

import torch

MODEL = "model.pt"


def _load(path):
    # Not weights_only: torch 1.13's cannot even read a float, and a scheduler's or scaler's state may hold anything
    # that the user's code can pickle; a save that only fails when it is loaded would be worse. The checkpoint directory
    # has to be as trusted as the training script.
    return torch.load(path, map_location="cpu", weights_only=False)


class RankState:
    """What each rank has of its own, whatever else is saved: its random number generators, so that a resumed run draws
    what an uninterrupted one would have drawn, and `extra`, such as the position in its data."""

    def __init__(self, extra, name="rank-%d.pitcrew.pt"):
        self._extra = {name: part for name, part in (extra or {}).items() if part is not None}
        self._name = name

    def save(self, context):
        """Writes the rank's file. Of an excluded rank, nothing comes from its accelerator. Gives the file's name."""
        trusted = context.rank not in context.exclude
        state = generators(cuda=trusted)
        extra = {name: part.state_dict() for name, part in self._extra.items()}
        state["extra"] = extra if trusted else {name: value for name, value in extra.items() if not on_device(value)}
        with context.open(self._name % context.rank) as f:
            torch.save(state, f)
        return [self._name % context.rank]

    def load(self, context, otherwise=()):
        """Gives the names of `extra` that were found. otherwise: states of a rank that has no file of its own."""
        own = os.path.join(context.directory, self._name % context.rank)
        state = {}
        if os.path.exists(own):  # not there for a rank that the world has gained since, nor in an older checkpoint
            state = _load(own)
            restore_generators(state)
        found = dict(otherwise, **state.get("extra", {}))
        for name, part in self._extra.items():
            if name in found:
                part.load_state_dict(found[name])
        return set(found)


class DataParallelState:
    """The default save_fn and load_fn: DDP, where every rank has the whole model and optimizer.

    `model.pt`: model, optimizer and what else has a state, by the writer. `rank-<R>.state.pt`: each rank's own
    (RankState). Parameters have the same names whether the model, or a part of it, is compiled or not."""

    def __init__(self, model, optimizer, extra):
        self._model = unwrapped(model)
        self._parts = {}
        for n, each in enumerate(optimizers(optimizer)):
            self._parts["optimizer.%d" % n if n else "optimizer"] = each
        self._own = RankState(extra, "rank-%d.state.pt")
        self._extra = {name: part for name, part in (extra or {}).items() if part is not None}

    def save(self, context):
        if context.is_writer:
            state = {name: part.state_dict() for name, part in {**self._parts, **self._extra}.items()}
            if self._model is not None:
                state["model"] = uncompiled(self._model.state_dict())
            with context.open(MODEL) as f:
                torch.save({"step": context.step, "state": state}, f)
        self._own.save(context)

    def load(self, context):
        state = _load(os.path.join(context.directory, MODEL))["state"]
        wanted = {*self._parts, *self._extra, *(["model"] if self._model is not None else [])}
        missing = sorted(wanted - set(state))
        if missing:
            raise KeyError("%s has no state for %s" % (context.directory, ", ".join(missing)))
        if self._model is not None:
            self._model.load_state_dict(as_compiled(state["model"], self._model))
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        self._own.load(context, {name: state[name] for name in self._extra})


_COMPILED = "_orig_mod."  # what torch.compile puts into the names of a module's parameters


def unwrapped(model):
    """The user's module under DistributedDataParallel, DataParallel and torch.compile, in any order."""
    while True:
        inner = getattr(model, "module", None) if _wrapped(model) else getattr(model, "_orig_mod", None)
        if inner is None:
            return model
        model = inner


def uncompiled(state):
    """A state_dict with the names that the module has where nothing of it is compiled."""
    return type(state)((name.replace(_COMPILED, ""), value) for name, value in state.items())


def as_compiled(state, module):
    """A state_dict with the names that this module, or the parts of it that are compiled, expects."""
    names = {name.replace(_COMPILED, ""): name for name in module.state_dict()}
    return {names.get(name.replace(_COMPILED, ""), name): value for name, value in state.items()}


def on_device(value):
    """Whether a state holds a tensor of an accelerator."""
    if isinstance(value, torch.Tensor):
        return value.device.type != "cpu"
    if isinstance(value, dict):
        return any(on_device(each) for each in value.values())
    return isinstance(value, (list, tuple, set)) and any(on_device(each) for each in value)


class AsyncSaveRefused(RuntimeError):
    """save_fn began an asynchronous save."""


ASYNC_SAVE = (
    "torch.distributed.checkpoint.async_save inside save_fn is not supported: what it has not written when save_fn "
    "returns is in no manifest, so the checkpoint would be torn. Call torch.distributed.checkpoint.save instead"
)


def synchronous(save_fn):
    """save_fn, with dcp.async_save refused inside it, also where the user's module imported the function by name."""

    def save(context):
        modules = [m for m in map(sys.modules.get, _DCP) if hasattr(m, "async_save")]
        originals = [(m, m.async_save) for m in modules]
        inner = sys.modules.get(_DCP[1])
        planner = getattr(inner, "_stateful_to_state_dict", None)
        try:
            for module in modules:
                module.async_save = _refuse
            if planner is not None:
                inner._stateful_to_state_dict = functools.partial(_not_from_async_save, planner)
            answer = save_fn(context)
        finally:
            for module, original in originals:
                module.async_save = original
            if planner is not None:
                inner._stateful_to_state_dict = planner
        if hasattr(answer, "add_done_callback") or hasattr(answer, "upload_completion"):
            raise AsyncSaveRefused(ASYNC_SAVE)
        return answer

    return save


_DCP = ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_saver")


def _refuse(*args, **kwargs):
    raise AsyncSaveRefused(ASYNC_SAVE)


def _not_from_async_save(planner, *args, **kwargs):
    """What both save and async_save call first."""
    frame = sys._getframe(1)
    for _ in range(4):
        if frame is not None and frame.f_code.co_name == "async_save":
            raise AsyncSaveRefused(ASYNC_SAVE)
        frame = frame.f_back if frame is not None else None
    return planner(*args, **kwargs)


def _wrapped(model):
    return isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel))


_FSDP = (  # where the versions of torch have them; nothing is imported to look
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("torch.distributed.fsdp", "FSDPModule"),
    ("torch.distributed._composable.fsdp", "FSDPModule"),  # torch 2.4 and 2.5
)
_PARTING = ("deepspeed", "megatron.core.optimizer", "torch.distributed.optim.zero_redundancy_optimizer")


def optimizers(given):
    """What `attach` was given, as a list."""
    return list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]


def stepping(optimizer):
    """The optimizer itself where another stands for it, which may leave steps out or was never set up as one
    (Accelerate's, Lightning's)."""
    inner = getattr(optimizer, "optimizer", None)
    kind = torch.optim.Optimizer
    return stepping(inner) if isinstance(optimizer, kind) and isinstance(inner, kind) else optimizer


def by_fsdp(model):
    """Whether FSDP, of either kind, has the model or a module of it."""
    kinds = tuple(getattr(sys.modules.get(module), name, ()) for module, name in _FSDP)
    return any(
        isinstance(module, kinds) or getattr(module, "_is_fsdp_managed_module", False)  # FSDP may be around it
        for module in _all(model, "modules")
    )


def parted(model, optimizer):
    """What this rank has only a part of, so that one rank's word is no checkpoint; "" for nothing that is known."""
    if by_fsdp(model):
        return "a model by FSDP"
    if any(_parts(p) for p in _all(model, "parameters")):
        return "a model of DTensors"
    for kind in (kind for each in (model, *optimizers(optimizer)) for kind in type(each).__mro__):
        if any((kind.__module__ + ".").startswith(module + ".") for module in _PARTING):
            return kind.__name__
    return ""


def _all(model, name):
    return getattr(model, name)() if isinstance(model, torch.nn.Module) else ()


def _parts(tensor):
    """Whether it is a DTensor of which other ranks have parts."""
    return any(not placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def generators(cuda):
    """The random number generators' states, as plain values."""
    version, internal, gauss = random.getstate()
    state = {"torch": torch.get_rng_state(), "python": [version, list(internal), gauss]}
    if cuda and torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, [int(k) for k in keys], int(position), int(has_gauss), float(cached)]
    return state


def restore_generators(state):
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"]))


def pipeline_stage(model):
    """ "pp<stage>" where this process is a stage of a pipeline by Megatron's or DeepSpeed's word, else "". Ranks of one
    stage do the same work, tensor-parallel ones too; those of two stages do not."""
    stage = getattr(model, "stage_id", None)  # deepspeed.pipe.PipelineModule
    if type(stage) is int and getattr(model, "num_stages", 1) > 1:
        return "pp%d" % stage
    megatron = sys.modules.get("megatron.core.parallel_state")
    try:
        if megatron is not None and megatron.get_pipeline_model_parallel_world_size() > 1:
            return "pp%d" % megatron.get_pipeline_model_parallel_rank()
    except Exception:  # not initialised, or another version's
        pass
    return ""


def ranks():
    """(rank, world size) by torch.distributed, or None before init_process_group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def default_store():
    """torch.distributed's store, or None before init_process_group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.distributed_c10d._get_default_store()


class CudaDevice:
    """The accelerator of this process, for devicetime.DeviceProbe (ROCm's torch calls it cuda too)."""

    def __init__(self, index):
        self._index = index
        self._free = []

    def event(self):
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def recycle(self, events):
        self._free.extend(events)

    @staticmethod
    def capturing():
        return torch.cuda.is_current_stream_capturing()

    @staticmethod
    def copy(tensor):
        """A copy in pinned memory, queued behind the work that computes the tensor."""
        pinned = torch.empty((), dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor.detach().reshape(()), non_blocking=True)

    @staticmethod
    def read(copy):
        return float(copy)

    def memory(self):
        """Bytes in use, held and most in use, and how often an allocation succeeded only with an emptied cache.

        Asks this process's allocator, not the device. Only for the training thread: another would wait with the
        interpreter's lock while the training thread hangs in the allocator."""
        stats = torch.cuda.memory.memory_stats_as_nested_dict(self._index)
        used, held = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return used["current"], held["current"], used["peak"], stats["num_alloc_retries"]


def device_of(model):
    """The CUDA device that the model's first parameter is on, as a number, or None."""
    parameter = next(iter(_all(model, "parameters")), None)
    mesh = getattr(parameter, "device_mesh", None)  # of a DTensor, which may lie in the host's memory between steps
    if getattr(mesh, "device_type", None) == "cuda" and parameter.device.type != "cuda":
        return torch.cuda.current_device()
    if parameter is None or parameter.device.type != "cuda":
        return None
    return torch.cuda.current_device() if parameter.device.index is None else parameter.device.index


# Dense FLOP/s of one accelerator in BF16 (V100: FP16), by a part of its name; the longest that fits counts. From
# NVIDIA's data sheets, most of which print twice as much, for sparse matrices.
_PEAK_FLOPS = {
    "V100": 125e12,
    "A100": 312e12,
    "L4": 121e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H100 PCIe": 756e12,
    "H200": 989e12,
    "B200": 2250e12,
    "GB200": 2500e12,
}


def peak_flops(name):
    """FLOP/s of an accelerator with this name, 0.0 when unknown."""
    words = name.replace("-", " ")
    known = [n for n in _PEAK_FLOPS if (" %s " % n) in (" %s " % words)]
    return _PEAK_FLOPS[max(known, key=len)] if known else 0.0


def about_device(index):
    """(UUID in NVIDIA's spelling or "", peak FLOP/s or 0.0) of a device that this process uses already."""
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", ""))  # torch >= 2.4
    return (uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else "GPU-" + uuid), peak_flops(properties.name)
