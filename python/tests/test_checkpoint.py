"""Checkpoints on disk and the chooser, with several ranks as threads."""

import json
import os
import threading
import zlib

import pytest

from pitcrew_torch import checkpoint, chooser
from pitcrew_torch.saver import SaveContext, Saver


def make(root, step, attempt=0, world_size=2, manifest=True, receipts=True):
    path = checkpoint.directory(str(root), step, attempt)
    os.makedirs(path)
    files = []
    for rank in range(world_size):
        name = "rank-%d.state.pt" % rank
        with checkpoint.CheckedFile(os.path.join(path, name)) as f:
            f.write(b"state of %d at %d " % (rank, step) * 100)
        entry = {"name": name, "bytes": f.bytes, "crc32": checkpoint.hexadecimal(f.crc)}
        files.append(dict(entry, rank=rank))
        if receipts:
            checkpoint.write_receipt(path, rank, step, attempt, world_size, [entry])
    if manifest:
        checkpoint.write_manifest(path, step, attempt, world_size, files, "req", False)
    return path


class Threads:
    """An exchange between ranks that are threads."""

    def __init__(self, world_size):
        self.barrier = threading.Barrier(world_size)
        self.value = None
        self.verdicts = []

    def of(self, rank):
        outer = self

        class Exchange:
            def share(self, value):
                if rank == 0:
                    outer.value = json.dumps(value)
                    outer.verdicts = []
                outer.barrier.wait(10)
                result = json.loads(outer.value)
                outer.barrier.wait(10)
                return result

            def worst(self, verdict):
                outer.verdicts.append(verdict)
                outer.barrier.wait(10)
                result = max(outer.verdicts)
                outer.barrier.wait(10)
                return result

        return Exchange()


def choose(root, world_size=2, accepts=lambda manifest: True):
    exchange, found, notes = Threads(world_size), [None] * world_size, []

    def one(rank):
        found[rank] = chooser.choose(str(root), exchange.of(rank), rank, world_size, accepts, notes.append)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world_size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert all(f == found[0] for f in found), "the ranks chose differently: %r" % (found,)
    return found[0] and os.path.basename(found[0][0]), notes


def test_the_newest_by_step_and_then_attempt_is_chosen(tmp_path):
    for step, attempt in ((9, 3), (10, 0), (10, 2), (100, 1), (99, 9)):
        make(tmp_path, step, attempt)
    assert choose(tmp_path)[0] == "step-100.attempt-1"
    os.rename(tmp_path / "step-100.attempt-1", tmp_path / "elsewhere")
    os.rename(tmp_path / "step-99.attempt-9", tmp_path / "elsewhere2")
    assert choose(tmp_path)[0] == "step-10.attempt-2"


def test_nothing_to_choose_from(tmp_path):
    assert choose(tmp_path / "missing")[0] is None
    assert choose(tmp_path)[0] is None


def flip(path):
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a bit of rank 0's file": lambda d: flip(d / "rank-0.state.pt"),
    "a bit of rank 1's file": lambda d: flip(d / "rank-1.state.pt"),
    "a short file": lambda d: os.truncate(d / "rank-1.state.pt", 5),
    "a missing file": lambda d: (d / "rank-1.state.pt").unlink(),
    "a manifest cut short": lambda d: os.truncate(d / "MANIFEST.json", 20),
    "an empty manifest": lambda d: (d / "MANIFEST.json").write_text(""),
    "a manifest with another size": lambda d: resize(d),
    "a manifest that is a list": lambda d: (d / "MANIFEST.json").write_text("[]"),
    "a manifest of another step": lambda d: edit(d, step=19),
    "a manifest of another attempt": lambda d: edit(d, attempt=4),
    "a manifest without files": lambda d: edit(d, files=[]),
    "a manifest that reaches outside": lambda d: edit(d, files=[{"name": "../x", "rank": 0, "bytes": 1, "crc32": "0"}]),
    "a manifest of version 2": lambda d: edit(d, v=2),
}


def edit(directory, **fields):
    manifest = json.loads((directory / "MANIFEST.json").read_text())
    (directory / "MANIFEST.json").write_text(json.dumps(dict(manifest, **fields)))


def resize(directory):
    files = json.loads((directory / "MANIFEST.json").read_text())["files"]
    files[1]["bytes"] += 1
    edit(directory, files=files)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_set_aside_not_deleted_and_the_next_newest_is_used(tmp_path, damage):
    make(tmp_path, 10)
    make(tmp_path, 20)
    damage(tmp_path / "step-20.attempt-0")
    name, notes = choose(tmp_path)
    assert name == "step-10.attempt-0"
    assert sorted(os.listdir(tmp_path)) == ["step-10.attempt-0", "step-20.attempt-0.quarantine"]
    assert any("step-20" in note for note in notes)


def test_a_second_damaged_directory_of_a_name_does_not_replace_the_first(tmp_path):
    for _ in range(2):
        make(tmp_path, 20, manifest=False, receipts=False)
        assert choose(tmp_path)[0] is None
    assert sorted(os.listdir(tmp_path)) == ["step-20.attempt-0.quarantine", "step-20.attempt-0.quarantine.1"]


def test_receipts_of_all_ranks_serve_for_a_manifest_and_of_some_do_not(tmp_path):
    make(tmp_path, 20, manifest=False)
    assert choose(tmp_path)[0] == "step-20.attempt-0"
    (tmp_path / "step-20.attempt-0" / "rank-1.done.json").unlink()
    assert choose(tmp_path)[0] is None


def test_another_world_size_is_passed_over_and_stays(tmp_path):
    make(tmp_path, 10)
    make(tmp_path, 20, world_size=4)
    assert choose(tmp_path, accepts=lambda m: m["world_size"] == 2)[0] == "step-10.attempt-0"
    assert (tmp_path / "step-20.attempt-0").is_dir()


def test_a_directory_another_rank_cannot_see_is_passed_over_and_stays(tmp_path, monkeypatch):
    make(tmp_path, 10)
    real, hidden = os.path.isdir, threading.local()

    def isdir(path):
        return real(path) and not (getattr(hidden, "yes", False) and "step-" in path)

    monkeypatch.setattr(chooser.os.path, "isdir", isdir)
    original = chooser._inspect

    def inspect(path, files):
        hidden.yes = any("rank-1" in f["name"] for f in files)
        return original(path, files)

    monkeypatch.setattr(chooser, "_inspect", inspect)
    assert choose(tmp_path)[0] is None
    assert (tmp_path / "step-10.attempt-0").is_dir()


def test_prune_keeps_the_newest_complete_ones_and_touches_nothing_else(tmp_path):
    for step in (10, 20, 30, 40):
        make(tmp_path, step)
    make(tmp_path, 35, manifest=False, receipts=False)
    make(tmp_path, 5, manifest=False)
    checkpoint.prune(str(tmp_path), 2)
    assert sorted(os.listdir(tmp_path)) == [
        "step-30.attempt-0", "step-35.attempt-0", "step-40.attempt-0", "step-5.attempt-0",
    ]  # fmt: skip


def test_the_checksum_written_is_the_one_read(tmp_path):
    with checkpoint.CheckedFile(str(tmp_path / "f")) as f:
        for part in (b"123", memoryview(b"456"), bytearray(b"789")):
            f.write(part)
    assert f.bytes == 9 and checkpoint.hexadecimal(f.crc) == "cbf43926"
    assert checkpoint.checksum(str(tmp_path / "f")) == (9, zlib.crc32(b"123456789"))


def test_whose_file_is_whose():
    names = ["rank-3.state.pt", "__12_0.distcp", "a/__0_1.distcp", ".metadata", "model.pt", "rank-x", "rank-12"]
    assert [checkpoint.owner(name, 7) for name in names] == [3, 12, 0, 7, 7, 7, 12]


def saver(root, save_fn, rank=0, world_size=1):
    trouble = []
    s = Saver(str(root), save_fn, rank, world_size, 0, 3, lambda step, ns, size: None, trouble.append)
    return s, trouble


def test_a_save_fn_may_open_files_name_them_or_leave_it_to_their_names(tmp_path):
    def opens(context):
        with context.open("sub/model.pt") as f:
            f.write(b"x")

    def names(context):
        with open(os.path.join(context.directory, "weights"), "wb") as f:
            f.write(b"xy")
        return ["weights"]

    def neither(context):
        for name in ("__0_0.distcp", "__1_0.distcp", ".metadata"):
            with open(os.path.join(context.directory, name), "wb") as f:
                f.write(b"xyz")

    for step, (save_fn, expected) in enumerate(
        [(opens, ["sub/model.pt"]), (names, ["weights"]), (neither, [".metadata", "__0_0.distcp"])], start=1
    ):
        s, trouble = saver(tmp_path, save_fn, world_size=2)
        fields = s.asked(step, ())
        assert [f["name"] for f in fields["files"]] == expected and not trouble


def test_a_failing_save_is_told_and_not_raised(tmp_path):
    def fails(context):
        raise OSError(28, "No space left on device")

    s, trouble = saver(tmp_path, fails)
    assert "No space left" in s.asked(5, ())["error"] and s.asked(5, ())["files"] == []
    s.periodic(6)
    assert len(trouble) == 3

    s, trouble = saver(tmp_path, lambda context: ["../../etc/passwd"])
    assert "outside" in s.asked(7, ())["error"]


def test_a_checkpoint_that_is_there_already_is_not_written_over(tmp_path):
    make(tmp_path, 5, world_size=1)
    s, _ = saver(tmp_path, lambda context: pytest.fail("must not be called"))
    assert "already holds a checkpoint" in s.asked(5, ())["error"]


def test_a_round_at_a_periodic_step_answers_with_the_files_already_written(tmp_path):
    calls = []

    def save_fn(context):
        calls.append(context.periodic)
        with context.open("rank-0.state.pt") as f:
            f.write(b"x")

    s, _ = saver(tmp_path, save_fn)
    s.periodic(20)
    fields = s.asked(20, ())
    assert calls == [True] and "error" not in fields and len(fields["files"]) == 1
    assert s.wait(5)
    assert checkpoint.load_manifest(fields["dir"])["periodic"] is True


def test_the_writer_is_the_lowest_rank_not_excluded():
    assert SaveContext("d", 1, 0, 0, 4, (), False).writer == 0
    assert SaveContext("d", 1, 0, 2, 4, (0, 1), False).is_writer
    assert SaveContext("d", 1, 0, 0, 2, (0, 1), False).writer == 0


def test_a_round_and_a_periodic_save_may_write_one_manifest_at_once(tmp_path):
    """A round can fall on the step of a periodic save: two threads then make the same directory a checkpoint."""
    (tmp_path / "step-60.attempt-0").mkdir()
    path = str(tmp_path / "step-60.attempt-0")
    with open(os.path.join(path, "model.pt"), "wb") as f:
        f.write(b"x" * 1000)
    size, crc = checkpoint.checksum(os.path.join(path, "model.pt"))
    files = [{"name": "model.pt", "rank": 0, "bytes": size, "crc32": checkpoint.hexadecimal(crc)}]
    failed = []

    def write(req):
        for _ in range(150):
            try:
                checkpoint.write_manifest(path, 60, 0, 1, files, req, periodic=not req)
                checkpoint.load_manifest(path)
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=write, args=(req,)) for req in ("", "inc-with-a-long-name-1-0")]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed[:3]
