"""Saves of a rank: what is in them, what they report, what they leave behind."""

import contextlib
import errno
import io
import json
import os
import queue
import threading
import time
import zlib

import pytest

from pitcrew_torch import checkpoint, claims, identity, rounds, saver, storage, wire
from pitcrew_torch.ownership import Owner
from pitcrew_torch.saver import Saver


@pytest.fixture(autouse=True)
def short_retries(monkeypatch):
    monkeypatch.setattr(storage, "DELAYS", (0.001, 0.001))
    monkeypatch.setattr(storage, "IN_A_STEP", (0.001,))


def gang(root, save_fn, world_size=2, attempt=0, keep=3, **options):
    """Savers of all ranks under one claim, and what they report."""
    run = identity.Run({"PITCREW_ATTEMPT": str(attempt), "PITCREW_JOB_UID": "j"})
    owner, trouble, fenced = Owner(claims.take(str(root), run), run), [], []
    return [
        Saver(
            str(root), save_fn, rank, world_size, attempt, keep, lambda *_: None, trouble.append,
            own=lambda acquire=True: owner, fenced=fenced.append, **options,
        )
        for rank in range(world_size)
    ], trouble, fenced, owner  # fmt: skip


def model_and_state(context):
    if context.is_writer:
        with context.open("model.pt") as f:
            f.write(b"state of rank %d" % context.rank)
    with context.open("rank-%d.state.pt" % context.rank) as f:
        f.write(b"excluded: %r" % (context.rank in context.exclude))


def wait(savers):
    assert all(s.wait(10) for s in savers)


def test_an_excluded_rank_enters_no_round_though_its_step_is_a_periodic_one(tmp_path):
    """Before, the round answered with the files of the periodic save, which rank 0's faulty GPU had written."""
    savers, trouble, _, _ = gang(tmp_path, model_and_state)
    for s in savers:
        s.periodic(10)
    wait(savers)
    saved = [s.asked(10, frozenset([0])) for s in savers]
    assert not trouble and {m["dir"] for m in saved} == {str(tmp_path / "step-10.attempt-0.round")}
    assert [[f["name"] for f in m["files"]] for m in saved] == [["rank-0.state.pt"], ["model.pt", "rank-1.state.pt"]]
    assert (tmp_path / "step-10.attempt-0.round" / "model.pt").read_bytes() == b"state of rank 1"
    files = [dict(f, rank=r) for r, m in enumerate(saved) for f in m["files"]]
    about = {"req": "r", "step": 10, "dir": saved[0]["dir"], "world_size": 2, "files": files}
    assert "error" not in savers[1].manifest(about)
    from pitcrew_torch.chooser import Survey

    best = Survey(str(tmp_path)).complete
    assert [c.name for c in best] == ["step-10.attempt-0.round", "step-10.attempt-0"]


def test_a_round_without_exclusions_at_a_periodic_step_writes_nothing_twice(tmp_path):
    savers, _, _, _ = gang(tmp_path, model_and_state)
    for s in savers:
        s.periodic(10)
    assert {s.asked(10, frozenset())["dir"] for s in savers} == {str(tmp_path / "step-10.attempt-0")}
    wait(savers)


def test_ten_thousand_files_of_a_rank_fit_in_a_line_and_are_all_checked(tmp_path):
    """Before, a `saved` line beyond 64 KiB (870 files) ended the connection and with it the round."""

    def many(context):
        for n in range(10_000):
            with open(os.path.join(context.directory, "__%d_%d.distcp" % (context.rank, n)), "wb") as f:
                f.write(b"%d" % n)

    (s,), trouble, _, _ = gang(tmp_path, many, world_size=1)
    saved = s.asked(5, ())
    assert not trouble and len(wire.encode(saved)) < wire.MAX_LINE_OUT
    assert [f["name"] for f in saved["files"]] == ["rank-0.files.json"] and saved["bytes"] == sum(
        len(str(n)) for n in range(10_000)
    )
    files = [dict(f, rank=0) for f in saved["files"]]
    assert "error" not in s.manifest({"step": 5, "dir": saved["dir"], "world_size": 1, "files": files})
    manifest = checkpoint.load_manifest(saved["dir"])
    checkpoint.verify(saved["dir"], manifest["files"])
    with open(os.path.join(saved["dir"], "__0_7777.distcp"), "wb") as f:
        f.write(b"7778")
    with pytest.raises(checkpoint.Damaged, match=r"__0_7777.distcp: checksum"):
        checkpoint.verify(saved["dir"], manifest["files"])
    with open(os.path.join(saved["dir"], "rank-0.files.json"), "r+b") as f:
        f.write(b"[")
    with pytest.raises(checkpoint.Damaged, match=r"rank-0.files.json: checksum"):
        checkpoint.verify(saved["dir"], manifest["files"])


def test_lists_of_four_thousand_ranks_fit_in_one_message_of_the_bus(tmp_path):
    entries = [{"name": "rank-4000.part-%d.pt" % n, "bytes": 1 << 30, "crc32": "0" * 8} for n in range(8)]
    entries = checkpoint.condensed(str(tmp_path), 4000, 4096, entries)
    assert len(entries) == 1 and 4096 * (len(json.dumps(entries)) + 16) < 1 << 20


def test_a_line_that_is_still_too_long_says_so(tmp_path):
    message = {"t": "saved", "req": "r", "attempt": 0, "files": [{"name": "x" * 1000}] * 100, "bytes": 5}
    short = json.loads(wire.line(message))
    assert short["t"] == "saved" and short["req"] == "r" and "was not sent" in short["error"] and "files" not in short
    assert rounds.NEVER


WAYS = {
    "open": lambda path: open(path, "wb"),
    "pathlib": lambda path: __import__("pathlib").Path(path).open("wb"),
    "unbuffered": lambda path: open(path, "wb", buffering=0),
    "io.open": lambda path: open(path, "wb"),
    "from a thread": None,
}


@pytest.mark.parametrize("way", WAYS)
def test_checksums_are_computed_while_writing(tmp_path, monkeypatch, way):
    """Without a second reading of what may be terabytes."""
    monkeypatch.setattr(checkpoint, "checksum", lambda *_: pytest.fail("a file was read back"))
    data = os.urandom(3 << 20)

    def write(path):
        with (WAYS[way] or WAYS["open"])(path) as f:
            for n in range(0, len(data), 100_000):
                f.write(data[n : n + 100_000])
            assert f.tell() == len(data)
            f.flush()
            os.fsync(f.fileno())

    def save(context):
        path = os.path.join(context.directory, "__%d_0.distcp" % context.rank)
        if way == "from a thread":
            thread = threading.Thread(target=write, args=(path,))
            thread.start()
            thread.join()
        else:
            write(path)

    before = io.open
    (s,), trouble, _, _ = gang(tmp_path, save, world_size=1)
    (entry,) = s.asked(5, ())["files"]
    assert not trouble and entry["bytes"] == len(data) and entry["crc32"] == "%08x" % zlib.crc32(data)
    assert io.open is before and open is before


def test_what_was_not_written_in_sequence_or_changed_later_is_read_back(tmp_path):
    def save(context):
        with open(os.path.join(context.directory, "__0_0.a"), "wb") as f:
            f.write(b"????rest")
            f.seek(0)
            f.write(b"head")
        with open(os.path.join(context.directory, "__0_0.b"), "wb") as f:
            f.write(b"first")
        time.sleep(0.02)
        fd = os.open(os.path.join(context.directory, "__0_0.b"), os.O_WRONLY)
        os.pwrite(fd, b"F", 0)
        os.close(fd)
        with open(os.path.join(context.directory, "__0_0.c"), "w") as f:
            f.write("text")

    (s,), _, _, _ = gang(tmp_path, save, world_size=1)
    found = {f["name"][-1]: f["crc32"] for f in s.asked(5, ())["files"]}
    assert found == {n: "%08x" % zlib.crc32(d) for n, d in (("a", b"headrest"), ("b", b"First"), ("c", b"text"))}


def test_a_manifest_that_never_completes_is_reported_and_its_folder_deleted_later(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "ASSEMBLE_WITHIN", 0.05)
    savers, trouble, _, _ = gang(tmp_path, model_and_state)
    savers[0].periodic(10)  # rank 1 has died
    wait(savers)
    assert len(trouble) == 1 and "step 10 was never complete: no receipt of rank 1" in trouble[0]
    assert (tmp_path / "step-10.attempt-0").is_dir()
    for s in savers[::-1]:
        s.periodic(20)
    wait(savers)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-20.attempt-0"] and len(trouble) == 1


def test_a_failed_save_is_told_and_the_next_one_goes_on(tmp_path):
    def full(context):
        if context.step == 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        model_and_state(context)

    (s,), trouble, fenced, _ = gang(tmp_path, full, world_size=1)
    s.periodic(10)
    s.periodic(20)
    wait([s])
    assert len(trouble) == 1 and "No space left" in trouble[0] and not fenced
    assert checkpoint.load_manifest(str(tmp_path / "step-20.attempt-0"))["epoch"] == 1


CALLS = {
    "a periodic save": lambda savers: [s.periodic(20) for s in savers],
    "a round's save": lambda savers: [s.asked(20, ()) for s in savers],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_nothing_is_written_once_a_later_attempt_owns_the_directory(tmp_path, call):
    """Before, an older attempt's prune deleted the newer attempt's checkpoints, and the next resume took the
    older's."""
    old, trouble, fenced, _ = gang(tmp_path, model_and_state, attempt=0, keep=1)
    for s in old:
        s.periodic(10)
    wait(old)
    new, _, new_fenced, _ = gang(tmp_path, model_and_state, attempt=1)
    for s in new:
        s.periodic(15)
    wait(new)
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    call(old)
    assert len(fenced) == 2 and "attempt 1" in str(fenced[0]) and "attempt 0" in str(fenced[0]) and not new_fenced
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    assert trouble == [] or all("Fenced" in t for t in trouble)


@pytest.mark.parametrize("where", ["write_receipt", "write_manifest", "prune", "manifest"])
def test_a_claim_that_comes_in_the_middle_of_a_save_is_seen_before_each_change(tmp_path, monkeypatch, where):
    old, _, fenced, _owner = gang(tmp_path, model_and_state, attempt=0, keep=1)
    for step in (10, 20):
        for s in old:
            s.periodic(step)
        wait(old)
    saved = [s.asked(25, ()) for s in old]
    if where == "manifest":
        gang(tmp_path, model_and_state, attempt=1)
        files = [dict(f, rank=r) for r, m in enumerate(saved) for f in m["files"]]
        answer = old[0].manifest({"step": 25, "dir": saved[0]["dir"], "world_size": 2, "files": files})
        assert "claim 2" in answer["error"] and len(fenced) == 1
        return
    target = {"write_receipt": (saver.Saver, "_sync"), "write_manifest": (checkpoint, "_same_size"),
              "prune": (Owner, "_claim_of")}[where]  # fmt: skip
    original, done = getattr(*target), []

    def claimed(*args):
        if not done:
            done.append(gang(tmp_path, model_and_state, attempt=1))
        return original(*args)

    monkeypatch.setattr(*target, staticmethod(claimed) if where == "write_receipt" else claimed)
    names = {p.name for p in tmp_path.glob("step-*")}
    for s in old:
        s.periodic(30)
    deadline = time.monotonic() + 10
    while not fenced and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fenced and "claim 2" in str(fenced[0])
    if where != "prune":
        assert not (tmp_path / "step-30.attempt-0" / "MANIFEST.json").exists()
    assert names <= {p.name for p in tmp_path.glob("step-*")}


def test_the_second_threads_wait_for_the_next_look_ends(tmp_path):
    """queue.SimpleQueue.get(timeout=...) waits forever if the timeout passes between its two looks: the manifest then
    waited for the next periodic save."""
    waiting = saver.Saver(str(tmp_path), None, 0, 1, 0, 1, None, print)._queue

    def waits():
        for _ in range(2000):
            waiting.put(None)
            waiting.get()
            with contextlib.suppress(queue.Empty):
                waiting.get(timeout=1e-7)

    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
