"""python -m pitcrew_torch.run: torchrun's place in a container that Pitcrew heals. docs/launcher.md tells the rest.

python -m pitcrew_torch.run --nproc-per-node=8 --nnodes=4 --master-addr=job-0.job --preload=datasets train.py --lr 1e-4
"""

from . import signals

if __name__ == "__main__":
    signals.catch_early()  # before the other imports: a signal must not be lost while they are loading

import contextlib
import gc
import importlib
import os
import sys

from . import worker
from .launcher import Launcher
from .options import parse
from .workers import BecomeWorker


def note(text):
    with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more: that must not end the job
        print("pitcrew_torch.run: %s" % text, file=sys.stderr, flush=True)


def warm_up(preload):
    """Import torch and what was asked for, once for all attempts, without starting a thread. Gives torch's version."""
    chosen = "OMP_NUM_THREADS" in os.environ
    # An OpenMP or BLAS library that makes its threads when loaded would make this process unsafe to fork.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        import torch
        import torch.distributed
        import torch.nn.parallel
        import torch.utils.data
    except ImportError as error:
        note("torch cannot be imported (%s): workers start without it" % error)
        return "", chosen
    for name in preload:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the collector of a forked worker leaves these pages shared
    return torch.__version__, chosen


def main(argv=None, warm_up=warm_up):
    """Runs until the job is over and ends the process. Returns only in a forked worker, when its script has ended."""
    options = parse(sys.argv[1:] if argv is None else argv, note=note)
    signals.catch_early(options.signals)
    launcher = Launcher(options, note=note)
    launcher.listen()
    version, chosen = warm_up(options.preload)
    launcher.torch_version = version
    try:
        _leave(launcher.run())
    except BecomeWorker:
        launcher.close_in_child()
    if not chosen and options.nproc == 1:  # torchrun limits threads only where several workers share a node
        del os.environ["OMP_NUM_THREADS"]
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(len(os.sched_getaffinity(0)))
    worker.run(options.module, options.script, options.args)
    return 0


def _leave(code):
    """End now: finalizers of torch and of preloaded modules may take long, and a signal would find nobody."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
