"""What the hook needs from torch: the state of a DDP job, the exchange between ranks, the accelerator.

Needs torch >= 1.13 and nothing else (no numpy). Uses no collective and synchronises no device.
"""

import itertools
import json
import os
import random
import sys

import torch

MODEL = "model.pt"


def state_name(rank):
    return "rank-%d.state.pt" % rank


def _load(path):
    # Not weights_only: torch 1.13's cannot even read a float, and a scheduler's or scaler's state may hold anything
    # that the user's code can pickle; a save that only fails when it is loaded would be worse. The checkpoint directory
    # has to be as trusted as the training script.
    return torch.load(path, map_location="cpu", weights_only=False)


class DataParallelState:
    """The default save_fn and load_fn: DDP, where every rank has the whole model and optimizer.

    `model.pt`: model, optimizer and what else has a state, by the writer. `rank-<R>.state.pt`: each rank's random
    number generators, so that a resumed run draws what an uninterrupted one would have drawn.
    """

    def __init__(self, model, optimizer, extra):
        self._parts = {"model": getattr(model, "module", model) if _wrapped(model) else model}
        for n, each in enumerate(optimizers(optimizer)):
            self._parts["optimizer.%d" % n if n else "optimizer"] = each
        self._parts.update(extra or {})
        self._parts = {name: part for name, part in self._parts.items() if part is not None}

    def save(self, context):
        if context.is_writer:
            state = {name: part.state_dict() for name, part in self._parts.items()}
            with context.open(MODEL) as f:
                torch.save({"step": context.step, "state": state}, f)
        with context.open(state_name(context.rank)) as f:
            torch.save(_generators(cuda=context.rank not in context.exclude), f)

    def load(self, context):
        state = _load(os.path.join(context.directory, MODEL))["state"]
        missing = sorted(set(self._parts) - set(state))
        if missing:
            raise KeyError("%s has no state for %s" % (context.directory, ", ".join(missing)))
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        own = os.path.join(context.directory, state_name(context.rank))
        if os.path.exists(own):  # not there for a rank that the world has gained since
            _restore_generators(_load(own))


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


def _generators(cuda):
    """The random number generators' states, as plain values."""
    version, internal, gauss = random.getstate()
    state = {"torch": torch.get_rng_state(), "python": [version, list(internal), gauss]}
    if cuda and torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, [int(k) for k in keys], int(position), int(has_gauss), float(cached)]
    return state


def _restore_generators(state):
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"]))


_exchanges = itertools.count()  # every rank calls resume() equally often, so these agree


class StoreExchange:
    """The ranks' exchange over torch.distributed's own store: no collective, no numpy, no device."""

    def __init__(self, store, rank, world_size, attempt):
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._prefix = "pitcrew/%d/%d" % (attempt, next(_exchanges))
        self._shared = itertools.count()
        self._voted = itertools.count()

    def share(self, value):
        key = "%s/share/%d" % (self._prefix, next(self._shared))
        if self._rank == 0:
            self._store.set(key, json.dumps(value))
        return json.loads(self._store.get(key))

    def worst(self, verdict):
        key = "%s/vote/%d" % (self._prefix, next(self._voted))
        if verdict:
            self._store.add("%s/%d" % (key, verdict), 1)
        if self._store.add(key + "/votes", 1) == self._world_size:  # the last one counts for all
            worst = next((v for v in (2, 1) if self._store.add("%s/%d" % (key, v), 0)), 0)
            self._store.set(key + "/verdict", str(worst))
        return int(self._store.get(key + "/verdict"))


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
