"""Upgrade skew: this hook with the agent of the previous release, whose bytes are in hook/testdata/previous."""

import gzip
import json
import os
import pathlib
import subprocess
import sys
import time

from pitcrew_torch import ring, wire

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PREVIOUS = REPOSITORY / "hook" / "testdata" / "previous"


def recorded():
    with open(PREVIOUS / "round.jsonl") as f:
        return [json.loads(line) for line in f]


def start(tmp_path):
    pod, ckpt = tmp_path / "pod", tmp_path / "ckpt"
    pod.mkdir()
    ckpt.mkdir()
    environ = dict(
        os.environ,
        PYTHONPATH=str(REPOSITORY / "python"),
        PYTHONDONTWRITEBYTECODE="1",
        PITCREW_DIR=str(pod),
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="1",
        PITCREW_ATTEMPT="3",
    )
    process = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "hook" / "testdata" / "rank.py"), str(ckpt)],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while not (pod / "local-0.sock").exists():
        assert time.monotonic() < deadline and process.poll() is None, "the rank does not listen"
        time.sleep(0.01)
    return process, pod, ckpt


def connect(pod):
    sock = wire.connect(str(pod / "local-0.sock"), timeout=30)
    return sock, sock.makefile("rb")


def like(want, got, where):
    """Whether got has all that the previous agent reads: every field, of the same type."""
    if isinstance(want, dict):
        for key, value in want.items():
            assert key in got, "%s: no %r in %s" % (where, key, got)
            like(value, got[key], where + "." + key)
    elif isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want), where
        for one, other in zip(want, got):
            like(one, other, where)
    else:
        numbers = (int, float)
        assert type(want) is type(got) or (type(want) in numbers and type(got) in numbers), "%s: %r is not like %r" % (
            where,
            got,
            want,
        )


def test_a_round_and_an_incident_go_through_with_the_agent_of_the_previous_release(tmp_path):
    process, pod, ckpt = start(tmp_path)
    try:
        sock, answers = connect(pod)
        base, files = None, None
        for entry in recorded():
            if entry.get("reconnects"):  # the agent is replaced in the middle of the round
                sock.close()
                sock, answers = connect(pod)
                continue
            line = entry["line"].replace('"/ckpt', '"' + str(ckpt))
            message = json.loads(line)
            if entry["from"] == "agent":
                if message["t"] == "arm":
                    message["at_step"] = base + 40
                if message["t"] == "manifest":
                    message.update(step=base + 40, dir=files["dir"], files=[dict(f, rank=0) for f in files["files"]])
                sock.sendall(wire.encode(message))
                continue
            if message["t"] == "error":
                (ckpt / "tmp").write_text("raise")
                (ckpt / "tmp").rename(ckpt / "end-0")
            got = json.loads(answers.readline())
            assert got["t"] == message["t"], "%s, want %s" % (got, message)
            assert len(wire.encode(got)) <= 64 << 10
            like(message, got, message["t"])
            if got["t"] == "pong":
                base = got["step"]
            if got["t"] == "saved":
                files = got
                assert "error" not in got
            if got["t"] == "manifested":
                assert (pathlib.Path(files["dir"]) / "MANIFEST.json").exists()
        sock.close()
        assert process.wait(30) != 0
    finally:
        process.kill()
        process.wait()


def test_the_ring_has_the_layout_that_the_agent_of_the_previous_release_reads(tmp_path):
    with gzip.open(PREVIOUS / "ring.gz") as f:
        want = f.read(24)
    path = str(tmp_path / "local-0.ring")
    ring.Ring.create(path, rank=0, local_rank=0, world_size=1, attempt=3)
    with open(path, "rb") as f:
        got = f.read(24)
    assert got[:20] == want[:20]  # magic, version, sizes of header and record: an agent refuses any other
