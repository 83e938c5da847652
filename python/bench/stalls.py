"""The worst step() while something stands still or is flooded around it.

    python3 python/bench/stalls.py [--out bench/out/stalls.json] [--steps 100000] [--case NAME ...]

Each case runs in a process of its own: 100,000 calls of step(loss), as fast as they go with a short pause every 5,000,
so that other threads have to ask for the GIL.
`worst_us` is the longest call less the time that the thread waited for a processor (the kernel's run_delay): what is
left is time on the processor or asleep. `asleep` counts calls in which the thread slept at all, which a call that
waits for a disk, a socket or a lock does. `control_us` is the longest of as many calls of a function that does
nothing, beside the same disturbance: how much of the worst call is the machine.

`frozen-*` make an ext4 on a loop device and need root; the rest does not. Exit status 1 if a case is over 1 ms.
"""

import argparse
import contextlib
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

from pitcrew_torch import wire  # noqa: E402
from pitcrew_torch.hook import Hook  # noqa: E402

AIM_US = 1000.0
CASES = {}


def case(what):
    def add(function):
        CASES[function.__name__.replace("_", "-")] = (what, function)
        return function

    return add


def memory_dir():
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def hook_in(directory):
    os.environ.update(PITCREW_DIR=directory, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0")
    return Hook(torch_version="bench")


def measure(call, steps):
    """(worst microseconds less the wait for a processor, calls in which this thread slept)."""
    clock, usage, thread = time.perf_counter_ns, resource.getrusage, resource.RUSAGE_THREAD
    delay = open("/proc/thread-self/schedstat")
    worst, asleep = 0, 0
    for n in range(steps):
        slept = usage(thread).ru_nvcsw
        began = clock()
        call()
        took = clock() - began
        asleep += usage(thread).ru_nvcsw - slept
        if (
            took > 50_000
        ):  # the delay is only looked at where it matters: what it was before is known from the last time
            delay.seek(0)
            waited = int(delay.read().split()[1])
            took -= min(took, waited - measure.waited)
            measure.waited = waited
        worst = max(worst, took)
        if n % 5000 == 4999:
            time.sleep(0.0005)
            delay.seek(0)
            measure.waited = int(delay.read().split()[1])
    return worst / 1e3, asleep


measure.waited = 0


def both(hook, steps):
    measure(lambda: None, 1000)
    control, _ = measure(lambda: None, steps)
    worst, asleep = measure(lambda: hook.step(0.25), steps)
    return {"worst_us": round(worst, 1), "asleep": asleep, "control_us": round(control, 1), "steps": steps}


@case("nothing special; ring on tmpfs, an agent is connected")
def quiet(steps):
    with memory_dir() as directory:
        hook = hook_in(directory)
        agent = wire.connect(os.path.join(directory, "local-0.sock"))
        agent.recv(65536)
        return both(hook, steps)


@contextlib.contextmanager
def loop_ext4():
    with tempfile.TemporaryDirectory() as directory:
        image, mount = os.path.join(directory, "image"), os.path.join(directory, "mnt")
        os.mkdir(mount)
        subprocess.run(["truncate", "-s", "64M", image], check=True)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, mount], check=True)
        try:
            yield mount
        finally:
            subprocess.run(["fsfreeze", "-u", mount], stderr=subprocess.DEVNULL)
            subprocess.run(["umount", "-l", mount])


def frozen(ring_in_it, steps):
    with loop_ext4() as disk, memory_dir() as memory:
        hook = hook_in(disk if ring_in_it else memory)
        for _ in range(2000):
            hook.step(0.25)
        os.sync()  # what is written next asks the file system first
        time.sleep(0.3)
        subprocess.run(["fsfreeze", "-f", disk], check=True)
        time.sleep(0.3)
        try:
            result = both(hook, steps)
        finally:
            subprocess.run(["fsfreeze", "-u", disk], check=True)
        return result


@case("the ring's own file system (ext4 on a loop device) is frozen by fsfreeze")
def frozen_ring(steps):
    return frozen(True, steps)


@case("another file system (ext4 on a loop device) is frozen; ring on tmpfs")
def frozen_elsewhere(steps):
    return frozen(False, steps)


AGENT = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pitcrew_torch import wire
s = wire.connect(sys.argv[1])
s.recv(65536)
kind = sys.argv[3]
if kind == "half":
    s.sendall(b'{"t":"arm","req":"r1","attempt":0,"at_step":99999')
    print("ready", flush=True)
    time.sleep(1000)
s.settimeout(None)
if kind == "flood":
    import threading
    def read():
        while s.recv(1 << 20): pass
    threading.Thread(target=read, daemon=True).start()
print("ready", flush=True)
while True:
    s.sendall(b'{"t":"ping"}\\n' * 500)
"""


def beside_agent(kind, steps, stop=False):
    with memory_dir() as directory:
        hook = hook_in(directory)
        argv = [
            sys.executable,
            "-c",
            AGENT,
            os.path.join(directory, "local-0.sock"),
            os.path.join(ROOT, "python"),
            kind,
        ]
        agent = subprocess.Popen(argv, stdout=subprocess.PIPE)
        try:
            agent.stdout.readline()
            if stop:
                agent.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            return both(hook, steps)
        finally:
            agent.kill()
            agent.wait()


@case("the agent is stopped (SIGSTOP) in the middle of a message")
def agent_stopped(steps):
    return beside_agent("half", steps, stop=True)


@case("the agent asks without reading the answers: the socket is full in both directions")
def socket_full(steps):
    return beside_agent("full", steps)


@case("the agent floods the side thread with messages and reads all answers")
def side_thread_busy(steps):
    return beside_agent("flood", steps)


@case("the side thread never gets to run: it is stuck in a call")
def side_thread_starved(steps):
    with memory_dir() as directory:
        hook = hook_in(directory)
        stuck = threading.Event()
        hook._side._beat = lambda now: stuck.wait()
        time.sleep(0.5)
        try:
            return both(hook, steps)
        finally:
            stuck.set()


@case("a heap of a million containers, and garbage made between the steps")
def garbage(steps):
    heap = [[n] for n in range(1_000_000)]
    with memory_dir() as directory:
        hook = hook_in(directory)
        for _ in range(10):
            gc.collect(0)
        made = []

        def make():
            made.append([[] for _ in range(50)])
            del made[:-20]

        worst, asleep, control = 0.0, 0, 0.0
        for _ in range(steps // 100):
            make()
            taken, slept = measure(lambda: hook.step(0.25), 100)
            worst, asleep = max(worst, taken), asleep + slept
            control = max(control, measure(lambda: None, 100)[0])
        assert heap
        return {"worst_us": round(worst, 1), "asleep": asleep, "control_us": round(control, 1), "steps": steps}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(ROOT, "bench", "out", "stalls.json"))
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--case", action="append", choices=list(CASES), default=[])
    parser.add_argument("--inside", choices=list(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(CASES[options.inside][1](options.steps)), flush=True)
        os._exit(0)
    results, ok = {}, True
    for name in options.case or CASES:
        if name.startswith("frozen") and os.geteuid() != 0:
            results[name] = {"what": CASES[name][0], "left_out": "needs root for a loop device"}
            continue
        argv = [sys.executable, os.path.abspath(__file__), "--inside", name, "--steps", str(options.steps)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=1200)
        if done.returncode:
            results[name], ok = {"what": CASES[name][0], "failed": done.returncode}, False
        else:
            results[name] = {"what": CASES[name][0], **json.loads(done.stdout)}
            ok = ok and results[name]["worst_us"] <= AIM_US
        print(name, json.dumps(results[name]), flush=True)
    load = round(os.getloadavg()[0], 1)
    os.makedirs(os.path.dirname(options.out), exist_ok=True)
    with open(options.out, "w", encoding="utf-8") as f:
        json.dump({"aim_us": AIM_US, "ok": ok, "load": load, "cpus": os.cpu_count(), "cases": results}, f, indent=1)
        f.write("\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
