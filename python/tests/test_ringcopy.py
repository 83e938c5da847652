"""A ring whose directory is on a disk, and what a reader sees of any ring while it is written at full speed."""

import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from agent import Line, wait_until

from pitcrew_torch import filesystem, ring
from pitcrew_torch.hook import Hook
from pitcrew_torch.ringcopy import RingCopy

WRITER = """
import sys
from pitcrew_torch import ring, ringcopy
r = ring.Ring.create(sys.argv[1], capacity=64, rank=0, world_size=1)
if r.copy_to is not None:
    ringcopy.EVERY = 0.0005
    ringcopy.RingCopy(r, r.copy_to, print).start()
print(r.medium, flush=True)
n = 0
while True:
    n += 1
    r.record(n, n, n, 1, 1, float(n), float(n), n, (n, n, n, n, n))
"""
ONE = [1, 2, 5, 6, 7, 8, 9, 10, 12, 13, 14]  # the fields of a record that the writer fills with its number


@pytest.fixture
def disk(monkeypatch):
    """A directory that is not in memory."""
    for root in (tempfile.gettempdir(), str(Path(__file__).parent)):
        with tempfile.TemporaryDirectory(dir=root) as directory:
            fd = os.open(directory, os.O_RDONLY)
            medium = filesystem.not_in_memory(fd)
            os.close(fd)
            if medium is not None:
                yield Path(directory)
                return
    pytest.skip("every directory here is in memory")


def whole_records(fd, capacity):
    """What docs/hook-protocol.md lets a reader take: each record's fields, with its number."""
    size = ring.RECORD_SIZE
    written = struct.unpack("<Q", os.pread(fd, 8, ring.RECORDS * 8))[0]
    data = os.pread(fd, capacity * size, ring.HEADER_SIZE)
    end = struct.unpack("<Q", os.pread(fd, 8, ring.RECORDS * 8))[0]
    for slot in range(len(data) // size):
        fields = ring.RECORD.unpack_from(data, slot * size)
        if fields[0] <= written and fields[0] + capacity > end + ring.margin(capacity):
            yield fields


@pytest.mark.parametrize("where", ["in memory", "on a disk"])
def test_a_reader_never_takes_a_torn_record(tmp_path, disk, where):
    path = (tmp_path if where == "in memory" else disk) / "local-0.ring"
    env = dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parent.parent))
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], env=env, stdout=subprocess.PIPE, text=True)
    try:
        medium = process.stdout.readline().strip()
        if (medium == "None") != (where == "in memory"):
            pytest.skip("%s is on %s" % (path, medium))
        fd, seen, until = os.open(path, os.O_RDONLY), 0, time.monotonic() + 2
        while time.monotonic() < until:
            for fields in whole_records(fd, 64):
                seen += 1
                assert {fields[i] for i in ONE} == {fields[0]}, fields
        os.close(fd)
        assert seen > 1000
    finally:
        process.kill()
        process.communicate()


def test_the_file_of_a_ring_on_a_disk_follows(disk):
    path = str(disk / "local-0.ring")
    r = ring.Ring.create(path, capacity=64, rank=3, world_size=4)
    assert r.medium is not None and ring.read(path)["header"]["rank"] == 3
    copy = RingCopy(r, r.copy_to, print)
    copy.start()
    for n in range(1, 11):
        r.record(n, n, n)
    assert copy.flush(5)
    assert [x["step"] for x in ring.read(path)["records"]] == list(range(1, 11))
    r.settle(10)
    for n in range(11, 200):  # more than one lap; the oldest two may be being overwritten
        r.record(n, n, n)
    r.amend(199, ring.RECORD_LOSS, loss=0.5)
    r.settle()
    r.error("boom")
    assert copy.flush(5)
    found = ring.read(path)
    assert [x["step"] for x in found["records"]] == list(range(138, 200)) and found["records"][-1]["loss"] == 0.5
    assert (found["header"]["records"], found["header"]["step"], found["header"]["last_error"]) == (199, 199, "boom")
    assert found["header"]["settled"] == ring.ALL
    assert copy.flush(5, over=True)
    copy.join(5)
    assert not copy.is_alive()


def test_a_record_that_is_amended_after_it_was_copied_is_copied_again(disk):
    path = str(disk / "local-0.ring")
    r = ring.Ring.create(path, capacity=64)
    copy = RingCopy(r, r.copy_to, print)
    r.settle(0)
    r.record(1, 1, 1)
    copy.copy()
    assert ring.read(path)["header"]["settled"] == 0
    r.amend(1, ring.RECORD_LOSS, loss=0.25)
    r.settle()
    copy.copy()
    assert ring.read(path)["records"][0]["loss"] == 0.25
    os.close(r.copy_to)


def test_the_hook_says_once_how_to_put_the_ring_into_memory_and_the_end_reaches_the_file(disk, capfd):
    for local_rank in (0, 1):
        hook = Hook(environ={"PITCREW_DIR": str(disk), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": "2"})
        for n in range(5):
            hook.step(float(n))
        hook.close()
        header = ring.read(str(disk / ("local-%d.ring" % local_rank)))["header"]
        assert (header["step"], header["exit"], header["section"]) == (5, ring.EXIT_CLEAN, 5)
    said = capfd.readouterr().err
    assert said.count("emptyDir: {medium: Memory}") == 1 and str(disk) in said


def test_while_the_disk_is_frozen_the_copy_says_how_old_it_is_and_the_socket_where_the_rank_is(disk, monkeypatch):
    """The node agent tells a rank that trains from a rank that hangs by these two (hook/freshness_test.go)."""
    real, thawed = os.pwrite, threading.Event()
    thawed.set()

    def pwrite(*args):
        thawed.wait(60)
        return real(*args)

    monkeypatch.setattr(os, "pwrite", pwrite)
    path = str(disk / "local-0.ring")
    hook = Hook(environ={"PITCREW_DIR": str(disk)})
    agent = Line(str(disk / "local-0.sock"))
    try:
        for _ in range(3):
            hook.step(1.0)
        wait_until(lambda: ring.read(path)["header"]["step"] == 3, 5, "the copy of step 3")
        thawed.clear()
        began = time.monotonic_ns()
        for _ in range(4):
            hook.step(1.0)
        with hook.section("validation"):
            time.sleep(0.3)
            agent.send("ping")
            pong = agent.expect("pong")
        header = ring.read(path)["header"]
        assert header["flags"] & ring.FLAG_COPIED and header["step"] == 3
        assert 0 < header["copied_ns"] < began + 100_000_000 < time.monotonic_ns() - 100_000_000
        assert (pong["step"], pong["section"], pong["pid"], pong["attempt"]) == (7, "validation", os.getpid(), 0)
        assert began < pong["step_ns"] <= pong["section_ns"] <= time.monotonic_ns()
        thawed.set()
        wait_until(lambda: ring.read(path)["header"]["step"] == 7, 5, "the copy of step 7")
        assert ring.read(path)["header"]["copied_ns"] > pong["step_ns"]
    finally:
        thawed.set()
        agent.close()
        hook.close()


def test_in_memory_nothing_is_said_and_no_thread_is_needed(tmp_path, capfd):
    fd = os.open(tmp_path, os.O_RDONLY)
    medium = filesystem.not_in_memory(fd)
    os.close(fd)
    if medium is not None:
        pytest.skip("the tests' directory is on %s" % medium)
    hook = Hook(environ={"PITCREW_DIR": str(tmp_path)})
    hook.step(1.0)
    assert ring.read(str(tmp_path / "local-0.ring"))["header"]["step"] == 1  # at once
    assert "pitcrew-ring" not in [t.name for t in threading.enumerate()]
    hook.close()
    assert capfd.readouterr().err == ""


def test_an_error_of_the_disk_is_reported_once_and_copying_goes_on(disk, monkeypatch):
    r = ring.Ring.create(str(disk / "local-0.ring"), capacity=64)
    said = []
    copy = RingCopy(r, r.copy_to, said.append)
    real, broken = os.pwrite, [True]

    def pwrite(*args):
        if broken[0]:
            raise OSError(5, "Input/output error")
        return real(*args)

    monkeypatch.setattr(os, "pwrite", pwrite)
    copy.start()
    r.record(1, 1, 1)
    wait_until(lambda: said, 5, "the error")
    time.sleep(0.2)
    broken[0] = False
    copy.flush(5)
    assert copy.flush(5) and len(said) == 1
    assert ring.read(str(disk / "local-0.ring"))["header"]["step"] == 1
    copy.flush(5, over=True)
