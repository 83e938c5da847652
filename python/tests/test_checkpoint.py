"""Checkpoints on disk and the chooser, with several ranks as threads."""

import errno
import json
import os
import threading
import zlib

import pytest
from gang import together

from pitcrew_torch import checkpoint, chooser, claims, identity, storage
from pitcrew_torch.ownership import Owner
from pitcrew_torch.saver import SaveContext, Saver


@pytest.fixture(autouse=True)
def short_retries(monkeypatch):
    monkeypatch.setattr(storage, "DELAYS", (0.001, 0.001))
    monkeypatch.setattr(storage, "IN_A_STEP", (0.001,))


def make(root, step, attempt=0, world_size=2, manifest=True, receipts=True, epoch=0):
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
            checkpoint.write_receipt(path, rank, step, attempt, world_size, [entry], epoch)
    if manifest:
        checkpoint.write_manifest(path, step, attempt, world_size, files, "req", False, epoch)
    return path


def choose(root, world_size=2, accepts=lambda manifest: True, read_only=False, only=None):
    """(name or None, notes) of the ranks' choice. The root is claimed first, unless read_only."""
    owner = None if read_only else claim(root)

    def one(rank, exchange):
        found, _ = chooser.choose(str(root), exchange, rank, world_size, accepts, notes.append, owner, only)
        return found and os.path.basename(found[0])

    notes = []
    found = together(world_size, one)
    assert all(f == found[0] for f in found), "the ranks chose differently: %r" % (found,)
    return found[0], notes


def claim(root, **environ):
    run = identity.Run(environ)
    return Owner(claims.take(str(root), run), run)


def there(root):
    return sorted(name for name in os.listdir(root) if not name.startswith("."))


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
    assert there(tmp_path) == ["step-10.attempt-0", "step-20.attempt-0.quarantine"]
    assert any("step-20" in note for note in notes)


def test_a_second_damaged_directory_of_a_name_does_not_replace_the_first(tmp_path):
    make(tmp_path, 10)
    for _ in range(2):
        make(tmp_path, 20)
        flip(tmp_path / "step-20.attempt-0" / "rank-0.state.pt")
        assert choose(tmp_path)[0] == "step-10.attempt-0"
    assert there(tmp_path)[1:] == ["step-20.attempt-0.quarantine", "step-20.attempt-0.quarantine.1"]


def test_an_incomplete_folder_may_be_in_progress_and_is_passed_over_as_it_is(tmp_path):
    make(tmp_path, 10)
    make(tmp_path, 20, manifest=False, receipts=False)
    assert choose(tmp_path)[0] == "step-10.attempt-0"
    assert there(tmp_path) == ["step-10.attempt-0", "step-20.attempt-0"]


def test_receipts_of_all_ranks_serve_for_a_manifest_and_of_some_do_not(tmp_path):
    make(tmp_path, 20, manifest=False)
    assert choose(tmp_path, read_only=True)[0] == "step-20.attempt-0"
    assert not (tmp_path / "step-20.attempt-0" / "MANIFEST.json").exists()
    assert choose(tmp_path)[0] == "step-20.attempt-0"
    assert (tmp_path / "step-20.attempt-0" / "MANIFEST.json").exists()
    (tmp_path / "step-20.attempt-0" / "MANIFEST.json").unlink()
    (tmp_path / "step-20.attempt-0" / "rank-1.done.json").unlink()
    assert choose(tmp_path)[0] is None


def test_receipts_of_two_saves_are_not_one_checkpoint(tmp_path):
    """Rank 0 wrote its part in one attempt, rank 1 in another one of the same number."""
    path = make(tmp_path, 20, manifest=False)
    entry = json.loads((tmp_path / "step-20.attempt-0" / "rank-1.done.json").read_text())["files"]
    checkpoint.write_receipt(path, 1, 20, 0, 2, entry, epoch=7)
    assert choose(tmp_path)[0] is None


def test_another_world_size_is_passed_over_and_stays(tmp_path):
    make(tmp_path, 10)
    make(tmp_path, 20, world_size=4)
    assert choose(tmp_path, accepts=lambda m: m["world_size"] == 2)[0] == "step-10.attempt-0"
    assert (tmp_path / "step-20.attempt-0").is_dir()


def test_training_does_not_start_over_while_checkpoints_exist(tmp_path):
    make(tmp_path, 20, world_size=4)
    make(tmp_path, 30)
    flip(tmp_path / "step-30.attempt-0" / "rank-1.state.pt")
    for skipped in (
        "step-30.attempt-0: damaged: rank 1: rank-1.state.pt: checksum",
        "step-30.attempt-0.quarantine: set",
    ):
        with pytest.raises(chooser.NoCheckpoint) as raised:  # and the restart does not start over either
            choose(tmp_path, accepts=lambda m: m["world_size"] == 2)
        assert "step-20.attempt-0: it is of 4 ranks" in str(raised.value) and skipped in str(raised.value)
        assert "fresh=True" in str(raised.value)
    assert choose(tmp_path, only=lambda manifest: False)[0] is None  # fresh


READ_ERRORS = [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES, errno.ENOENT]


@pytest.mark.parametrize("number", READ_ERRORS, ids=errno.errorcode.get)
def test_one_ranks_read_error_raises_everywhere_and_renames_nothing(tmp_path, monkeypatch, number):
    """Before, it set aside every good checkpoint, and training started at step 0."""
    for step in (10, 20, 30):
        make(tmp_path, step)
    failed = []

    def checksum(path, progress=None):
        def act():
            if path.endswith("rank-1.state.pt"):
                failed.append(path)
                raise OSError(number, os.strerror(number), path)
            return original(path, progress)

        return storage.retried("read", path, act)

    original = checkpoint.checksum
    monkeypatch.setattr(checkpoint, "checksum", checksum)
    with pytest.raises(chooser.Unreadable) as raised:
        choose(tmp_path)
    assert there(tmp_path) == ["step-%d.attempt-0" % step for step in (10, 20, 30)]
    said = str(raised.value)
    for part in (
        "rank 1",
        "rank-1.state.pt",
        errno.errorcode[number],
        storage.host(),
        storage.REMEDIES.get(number, "check"),
    ):
        assert part in said
    assert len(failed) == 1 + len(storage.DELAYS)


def test_a_read_error_that_passes_costs_nothing(tmp_path, monkeypatch):
    make(tmp_path, 10)
    original, left = os.listdir, [2]

    def listdir(path):
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle", path)
        return original(path)

    monkeypatch.setattr(storage.os, "listdir", listdir)
    assert choose(tmp_path)[0] == "step-10.attempt-0" and left == [0]


def test_a_missing_file_of_a_complete_checkpoint_raises(tmp_path):
    """The server's word may come late; an older checkpoint is not taken instead."""
    make(tmp_path, 10)
    make(tmp_path, 20)
    (tmp_path / "step-20.attempt-0" / "rank-1.state.pt").unlink()
    with pytest.raises(chooser.Unreadable, match=r"rank-1.state.pt.*ENOENT.*move its step directory out"):
        choose(tmp_path)
    assert there(tmp_path) == ["step-10.attempt-0", "step-20.attempt-0"]


def test_an_old_checkpoint_that_cannot_be_read_does_not_matter_beside_a_newer_one(tmp_path):
    make(tmp_path, 20)
    make(tmp_path, 10)
    manifest = tmp_path / "step-10.attempt-0" / "MANIFEST.json"
    manifest.unlink()
    manifest.mkdir()  # reading it is an error
    assert choose(tmp_path)[0] == "step-20.attempt-0"


def test_a_directory_another_rank_cannot_see_raises_and_stays(tmp_path, monkeypatch):
    make(tmp_path, 10)
    original = storage.names

    def names(path, absent=None):
        if threading.current_thread().name == "rank 1" and "step-" in path:
            raise storage.StorageError("list", path, FileNotFoundError(2, "No such file or directory"), 3)
        return original(path, absent)

    monkeypatch.setattr(storage, "names", names)
    with pytest.raises(chooser.Unreadable, match=r"rank 1: .*is mounted on this node"):
        choose(tmp_path)
    assert (tmp_path / "step-10.attempt-0").is_dir()


def test_whoever_only_reads_touches_nothing(tmp_path):
    """Before, an evaluation job renamed a live save of the training job."""
    make(tmp_path, 10)
    make(tmp_path, 20)
    flip(tmp_path / "step-20.attempt-0" / "rank-0.state.pt")
    make(tmp_path, 30, manifest=False, receipts=False)
    before = there(tmp_path)
    assert choose(tmp_path, read_only=True)[0] == "step-10.attempt-0"
    assert sorted(os.listdir(tmp_path)) == before


def test_a_checkpoint_that_is_pruned_while_it_is_read_moves_the_choice_on(tmp_path, monkeypatch):
    make(tmp_path, 10)
    make(tmp_path, 20)
    original = checkpoint.verify

    def verify(path, files, progress=None):
        if "step-20" in path:
            if os.path.isdir(path):
                os.rename(path, path + checkpoint.PRUNED)
                make(tmp_path, 30)
            os.stat(path)
        original(path, files, progress)

    monkeypatch.setattr(checkpoint, "verify", verify)
    assert choose(tmp_path, world_size=1, read_only=True)[0] == "step-30.attempt-0"


def prune(owner, keep, accepts=lambda manifest: True, busy=()):
    notes = []
    owner.prune(keep, accepts, busy, notes.append)
    return notes


def test_prune_keeps_the_newest_complete_ones_and_reports_what_it_deletes(tmp_path):
    for step in (10, 20, 30, 40):
        make(tmp_path, step)
    make(tmp_path, 35, manifest=False, receipts=False)
    notes = prune(claim(tmp_path), 2)
    assert there(tmp_path) == ["step-30.attempt-0", "step-35.attempt-0", "step-40.attempt-0"]
    assert notes == ["deleted step-%d.attempt-0: older than the newest 2" % step for step in (20, 10)]


def test_prune_counts_only_checkpoints_that_this_job_accepts(tmp_path):
    """Before, a restarted job of another size deleted its own new checkpoints as it wrote them."""
    for step in (1000, 1500, 2000):
        make(tmp_path, step, world_size=8)
    owner = claim(tmp_path)
    for step in (10, 20, 30, 40):
        make(tmp_path, step, attempt=1, world_size=1, epoch=owner.epoch)
        prune(owner, 3, lambda m: m["world_size"] == 1)
    assert {checkpoint.parse_name(name)[0] for name in there(tmp_path)} == {1000, 1500, 2000, 20, 30, 40}


def test_prune_deletes_incomplete_folders_of_this_run_and_no_others(tmp_path):
    make(tmp_path, 5, attempt=9, manifest=False, receipts=False)  # of nobody known
    first = claim(tmp_path, PITCREW_JOB_UID="j", PITCREW_ATTEMPT="1")
    make(tmp_path, 10, attempt=1, manifest=False, receipts=False)  # its attempt died in the middle
    second = claim(tmp_path, PITCREW_JOB_UID="j", PITCREW_ATTEMPT="2")
    for step in (20, 30, 50):
        make(tmp_path, step, attempt=2, manifest=step == 50, receipts=False, epoch=second.epoch)
    make(tmp_path, 60, attempt=2, manifest=False, receipts=False)  # being written
    notes = prune(second, 3, busy={30})
    assert there(tmp_path) == ["step-%d.attempt-%d" % each for each in ((30, 2), (5, 9), (50, 2), (60, 2))]
    assert first.epoch == 1 and all("incomplete" in note for note in notes) and len(notes) == 2


def test_a_deletion_that_was_cut_short_is_finished_later_and_is_no_checkpoint(tmp_path):
    path = make(tmp_path, 10)
    make(tmp_path, 20)
    os.rename(path, path + checkpoint.PRUNED)
    assert choose(tmp_path)[0] == "step-20.attempt-0"
    prune(claim(tmp_path), 3)
    assert there(tmp_path) == ["step-20.attempt-0"]


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
