"""What the hook needs from torch: the state of a DDP job, the exchange between ranks, the optimizer's step.

Needs torch >= 1.13 and nothing else (no numpy). Uses no collective and synchronises no device.
"""

import itertools
import json
import os
import random
import sys
import time
import types

import torch

MODEL = "model.pt"
READ_LOSS_EVERY = 32  # steps between two reads of a loss that lives on a device


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
        self._parts = {"model": getattr(model, "module", model) if _wrapped(model) else model, "optimizer": optimizer}
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


def default_store():
    """torch.distributed's store, or None before init_process_group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.distributed_c10d._get_default_store()


class LossReader:
    """Reads a loss that lives on a device without waiting for it: now and then a copy into pinned memory is queued,
    and taken when its event says it has arrived."""

    def __init__(self):
        self._skip = 0
        self._copy = None  # (event, pinned tensor, the record's sequence number or None until known)

    def offer(self, loss):
        self._skip -= 1
        if self._skip > 0 or self._copy is not None or loss.device.type != "cuda":
            return
        self._skip = READ_LOSS_EVERY
        pinned = torch.empty((), dtype=loss.dtype, pin_memory=True)
        pinned.copy_(loss.detach().reshape(()), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._copy = [event, pinned, None]

    def collect(self, ring, sequence):
        copy = self._copy
        if copy is None:
            return
        if copy[2] is None:
            copy[2] = sequence
        elif copy[0].query():
            self._copy = None
            value = float(copy[1])
            finite = value - value == 0.0
            ring.amend(copy[2], 1 if finite else 1 | 4, loss=value)


def follow_optimizer(optimizer, hook, counts):
    """Call hook.step() after each optimizer.step() of this instance, as long as counts() says so.

    torch 1.13 has no optimizer step hooks, so the instance's method is wrapped, in a way that learning rate schedulers
    go on working with: they wrap it too, need `__self__` and `__func__`, and look for their own mark on it
    (`_with_counter`; in torch 2 `_wrapped_by_lr_sched`).
    """
    inner = optimizer.step

    def step(self, *args, **kwargs):
        began = time.monotonic_ns()
        result = inner(*args, **kwargs)
        counts(time.monotonic_ns() - began)
        return result

    step.__dict__.update(getattr(inner, "__dict__", {}))
    optimizer.step = types.MethodType(step, optimizer)
