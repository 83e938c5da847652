"""A checkpoint round, as the agent conducts it: arm, hold, save, manifest, release. The agent's part is played here,
since without a remediator no agent starts a round; the hook, its socket and its files are real."""

import collections
import contextlib
import json
import os
import shutil
import time

from . import jobs
from .figures import Missing, wait_until

DEADLINE_MS = 60_000


class Line:
    """A connection to the rank's socket. Messages that nobody waits for yet stay."""

    def __init__(self, path, patience):
        from pitcrew_torch import wire

        def dial():
            with contextlib.suppress(OSError):
                return wire.connect(path, patience)

        self._encode = wire.encode
        self._socket = wait_until(dial, patience, "the rank's socket")
        self._bytes, self._seen = b"", collections.deque()
        self.hello = self.expect("hello", patience)

    def send(self, kind, **fields):
        self._socket.sendall(self._encode(dict({"t": kind}, **fields)))

    def expect(self, kind, patience, **fields):
        until = time.monotonic() + patience
        while True:
            for message in self._seen:
                if message["t"] == kind and all(message.get(k) == v for k, v in fields.items()):
                    self._seen.remove(message)
                    return message
                if message["t"] == "nack":
                    raise RuntimeError("the rank refused: %s" % message)
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            data = self._socket.recv(65536)
            if not data:
                raise RuntimeError("the rank closed its socket while %s was awaited" % kind)
            *whole, self._bytes = (self._bytes + data).split(b"\n")
            self._seen.extend(json.loads(text) for text in whole)


def one_round(line, req, attempt, patience):
    """Seconds of holding and saving, and bytes."""
    about = {"req": req, "attempt": attempt}
    line.send("ping", **about)
    step = line.expect("pong", patience)["step"]
    line.send("arm", at_step=step + 5, deadline_ms=DEADLINE_MS, exclude=[], **about)
    line.expect("armed", patience, req=req)
    line.send("go", **about)
    line.expect("held", patience, req=req)
    held = time.monotonic()
    saved = line.expect("saved", patience, req=req)
    if saved.get("error"):
        raise RuntimeError("the save failed: %s" % saved["error"])
    files = [dict(f, rank=0) for f in saved["files"]]
    line.send("manifest", step=saved["step"], dir=saved["dir"], world_size=1, writers=[0], files=files, **about)
    answer = line.expect("manifested", patience, req=req)
    if answer.get("error"):
        raise RuntimeError("the manifest failed: %s" % answer["error"])
    line.send("release", **about)
    line.expect("released", patience, req=req)
    return time.monotonic() - held, saved["seconds"], saved["bytes"], saved["dir"]


def run(context, report):
    width, layers = context.size((4096, 8), (128, 2))
    state = width * width * 4 * layers * 2  # parameters and momentum
    places = (("disk", context.work, context.size(4, 2)), ("memory", context.memory, context.size(3, 0)))
    for where, folder, rounds in places:
        if not rounds:
            continue
        root = os.path.join(folder, "ckpt")
        free = shutil.disk_usage(folder).free
        if free < 4 * state:
            report.note("%s: not measured, %d MiB are free and %d needed" % (where, free >> 20, 4 * state >> 20))
            continue
        one_place(context, report, where, root, rounds, width, layers, state)
        shutil.rmtree(root, ignore_errors=True)


def one_place(context, report, where, root, rounds, width, layers, state):
    pod, log = os.path.join(context.memory, "pod-" + where), os.path.join(context.work, "log-" + where)
    os.makedirs(pod)
    env = jobs.environment(
        context, JOB_LOG=log, JOB_CHECKPOINTS=root, JOB_WIDTH=width, JOB_LAYERS=layers, JOB_STEP_SECONDS=0.02,
        PITCREW_DIR=pod,
    )  # fmt: skip
    patience, taken = context.patience, []
    process = jobs.alone(env)
    try:
        line = Line(os.path.join(pod, "local-0.sock"), patience)
        wait_until(lambda: len(jobs.lines(log, 0, "step")) > 10, patience, "the job to step")
        for n in range(rounds):
            *numbers, directory = one_round(line, "round-%d" % n, 0, patience)
            taken.append(numbers)
            shutil.rmtree(directory, ignore_errors=True)  # the next one must not wait for its room
        steps = jobs.lines(log, 0, "step")
    finally:
        process.kill()
        process.wait()
    gaps = sorted((b["mono"] - a["mono"] for a, b in zip(steps, steps[1:])), reverse=True)
    report.figure("%s: hold, from held to released" % where, "s", [held for held, _, _ in taken])
    report.figure("%s: training stands still" % where, "s", gaps[:rounds])
    report.figure("%s: save, device to synced files" % where, "s", [seconds for _, seconds, _ in taken])
    report.figure("%s: bytes" % where, "B", [size for _, _, size in taken])
    report.figure("%s: rate of the save" % where, "B/s", [size / seconds for _, seconds, size in taken])
    least = min(size for _, _, size in taken)
    report.check("%s: the whole state is in it" % where, "at least %d B" % state, "%d B" % least, least >= state)


__all__ = ["Missing", "run"]
