"""A worker: runs the user's script as `python script` or `python -m module` would.

The one thing it adds is in `init_process_group`: a rank other than 0 first waits, with a cheap probe, until rank 0's
store listens, because torch's own client tries again only once a second. PITCREW_MASTER_WAIT=0 turns that off.
"""

import functools
import importlib.machinery
import json
import os
import runpy
import socket
import sys
import time
import types

PROBE_EVERY = 0.01  # seconds
PROBE_FOR = 300.0  # then torch's own time-out takes over


def run(module, script, args):
    """Run the script as __main__ in this process. Returns when it does; SystemExit and errors pass through."""
    sys.stdout.reconfigure(line_buffering=True)
    wait_for_master_lazily()
    sys.argv = [script, *args]
    try:
        if module:
            sys.path[0:1] = [os.getcwd()]
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            _run_path(script)
    except SystemExit as leaving:
        hook = getattr(sys.modules.get("pitcrew_torch"), "_hook", None)
        if hook is not None:
            hook.exiting(leaving.code)
        raise


def _run_path(script):
    sys.path[0:1] = [os.path.dirname(os.path.abspath(script))]
    main = types.ModuleType("__main__")
    main.__file__ = script
    main.__builtins__ = __builtins__
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script)
    main.__spec__ = None
    with open(script, "rb") as f:
        code = compile(f.read(), script, "exec")
    sys.modules["__main__"] = main  # for good: pickling and multiprocessing look here
    exec(code, main.__dict__)


def wait_for_master(addr, port, timeout=PROBE_FOR, clock=time.monotonic):
    """True as soon as somebody listens at addr:port."""
    until = clock() + timeout
    while clock() < until:
        try:
            socket.create_connection((addr, port), timeout=2.0).close()
            return True
        except OSError:
            time.sleep(PROBE_EVERY)
    return False


def wait_for_master_lazily():
    """Wrap torch.distributed.init_process_group, where torch is loaded already, to wait for the master first."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or os.environ.get("PITCREW_MASTER_WAIT") == "0":
        return
    original = distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(backend=None, init_method=None, *args, **kwargs):
        store = kwargs.get("store", args[3] if len(args) > 3 else None)  # after timeout, world_size and rank
        if init_method in (None, "env://") and store is None and os.environ.get("RANK", "0") != "0":
            try:
                wait_for_master(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            except (KeyError, ValueError):
                pass  # torch says what is missing, and better
        return original(backend, init_method, *args, **kwargs)

    distributed.init_process_group = init_process_group


def main():
    from . import workers

    job = json.loads(os.environ.pop("PITCREW_WORKER"))
    workers._bind_to_parent(job["parent"])
    try:
        import torch
        import torch.distributed  # noqa: F401
    except ImportError:
        pass
    run(job["module"], job["script"], job["args"])


if __name__ == "__main__":
    main()
