"""Who owns a checkpoint directory: claims, their order, their heartbeat."""

import json
import os
import threading
import time

import pytest

from pitcrew_torch import claims, custody, identity, storage
from pitcrew_torch.exchange import Alone
from pitcrew_torch.ownership import Owner


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(storage, "DELAYS", (0.001, 0.001))
    monkeypatch.setattr(claims, "WATCHED", 0.24)


def run(attempt=None, job="", run_id="", launcher=None, started=None, managed=False, pid=None, host=None):
    """A run as its environment and processes describe it."""
    environ = {"PITCREW_JOB_UID": job, "TORCHELASTIC_RUN_ID": run_id}
    if attempt is not None:
        environ["PITCREW_ATTEMPT"] = str(attempt)
    if managed:
        environ["PITCREW_ATTEMPT_BY"] = "agent"
    r = identity.Run(environ)
    r.launcher = launcher or r.launcher
    r.pid, r.host = pid or r.launcher * 10 + r.attempt, host or "host-%d" % r.launcher
    r.started = r.started if started is None else started
    return r


def take(root, who, **options):
    return claims.take(str(root), who, **options)


def test_claims_are_numbered_and_the_earlier_one_is_fenced(tmp_path):
    first = take(tmp_path, run(0, "j"))
    first.check()
    second = take(tmp_path, run(1, "j"))
    assert (first.epoch, second.epoch) == (1, 2)
    second.check()
    with pytest.raises(claims.Fenced, match=r"claim 2 \(attempt 1.*job j.*\) after claim 1 \(attempt 0"):
        first.check()


def test_of_many_who_claim_at_once_each_gets_a_number_of_its_own(tmp_path):
    got, start = [], threading.Barrier(12)

    def one(n):
        start.wait()
        got.append(take(tmp_path, run(n, "j", launcher=100 + n)).epoch)

    original = os.getpid
    threads = [threading.Thread(target=one, args=(n,)) for n in range(12)]
    try:
        os.getpid = lambda: 10_000 + threading.get_ident() % 10_000_000  # each is a process of its own
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        os.getpid = original
    assert sorted(got) == list(range(1, len(got) + 1)) and len(got) == 12
    assert [c["epoch"] for c in claims.history(str(tmp_path))] == sorted(got)


def test_a_file_system_without_hard_links_serves_too(tmp_path, monkeypatch):
    def link(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(claims.os, "link", link)
    assert [take(tmp_path, run(n, "j")).epoch for n in range(3)] == [1, 2, 3]


def test_a_link_whose_answer_was_lost_is_not_made_twice(tmp_path, monkeypatch):
    real = os.link

    def link(*args):
        real(*args)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(claims.os, "link", link)
    assert take(tmp_path, run(0, "j")).epoch == 1 and len(claims.history(str(tmp_path))) == 1


# (claims made before, in order; who comes; whether it is let in)
NOW = 1000.0


def managed(attempt, launcher):
    return {"attempt": attempt, "job": "j", "managed": True, "launcher": launcher}


ORDERS = {
    "the launcher's next attempt": ([{"attempt": 0, "launcher": 7}], {"attempt": 1, "launcher": 7}, True),
    "a late process of an older attempt": ([{"attempt": 1, "launcher": 7}], {"attempt": 0, "launcher": 7}, False),
    "the remediator's next attempt on another node": (
        [managed(3, 7)], managed(4, 8), True),
    "the remediator's older attempt": (
        [managed(4, 8)], managed(3, 7), False),
    "the remediator moves rank 0 back to a launcher that had it before": (
        [managed(3, 7), managed(4, 8)],
        managed(5, 7), True),
    "a container that was started again counts from 0": (
        [{"attempt": 3, "job": "j", "managed": True, "launcher": 7, "started": NOW}],
        {"attempt": 0, "job": "j", "launcher": 9, "started": NOW + 100}, True),
    "the old torchrun restarts its workers after a newer torchrun claimed": (
        [{"attempt": 0, "job": "j", "launcher": 7}, {"attempt": 0, "job": "j", "launcher": 8}],
        {"attempt": 5, "job": "j", "launcher": 7}, False),
    "an old torchrun that was slow to claim comes after the newer one": (
        [{"attempt": 0, "run_id": "r", "launcher": 8, "started": NOW}],
        {"attempt": 0, "run_id": "r", "launcher": 7, "started": NOW - 60}, False),
    "a torchrun of the same job that was started later": (
        [{"attempt": 2, "run_id": "r", "launcher": 7, "started": NOW}],
        {"attempt": 0, "run_id": "r", "launcher": 8, "started": NOW + 60}, True),
    "clocks that differ by seconds": (
        [{"attempt": 2, "run_id": "r", "launcher": 7, "started": NOW}],
        {"attempt": 0, "run_id": "r", "launcher": 8, "started": NOW - 3}, True),
    "another job's directory that nobody beats in": ([{"job": "a", "launcher": 7}], {"job": "b", "launcher": 8}, True),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS.values(), ids=ORDERS)
def test_who_may_claim_after_whom(tmp_path, case):
    before, who, let_in = case
    for fields in before:
        take(tmp_path, run(**fields))
    if let_in:
        assert take(tmp_path, run(**who)).epoch == len(before) + 1
        return
    with pytest.raises(claims.ClaimRefused):
        take(tmp_path, run(**who))
    assert len(claims.history(str(tmp_path))) == len(before)
    assert take(tmp_path, run(**who), take_over=True).epoch == len(before) + 1


def test_another_job_that_is_alive_keeps_its_directory(tmp_path):
    """An evaluation script that forgets read_only=True must not stop the training job."""
    owner = take(tmp_path, run(0, "a", launcher=7))
    over = threading.Event()

    def beats():
        count = 0
        while not over.wait(0.02):
            count += 1
            claims.write_beat(str(tmp_path), owner.epoch, 0, 5, count)

    claims.write_beat(str(tmp_path), owner.epoch, 0, 5, 0)
    thread = threading.Thread(target=beats)
    thread.start()
    try:
        with pytest.raises(claims.ClaimRefused, match=r"another job is training.*step 5.*read_only=True"):
            take(tmp_path, run(0, "b", launcher=8))
        assert take(tmp_path, run(1, "a", launcher=8)).epoch == 2  # its own next attempt need not wait
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("how", ["stands still", "ended", "process gone"])
def test_another_job_that_is_dead_does_not(tmp_path, monkeypatch, how):
    owner = take(tmp_path, run(0, "a", launcher=7))
    claims.write_beat(str(tmp_path), owner.epoch, 0, 5, 9, ended=how == "ended")
    who = run(0, "b", launcher=8)
    if how == "process gone":
        monkeypatch.setattr(claims, "WATCHED", 1e9)
        who.host = owner.record["host"]
    began = time.monotonic()
    assert take(tmp_path, who).epoch == 2
    assert (time.monotonic() - began > 0.2) == (how == "stands still")


def test_a_directory_that_was_cleared_is_claimed_again_and_one_that_others_took_is_not(tmp_path):
    owner = take(tmp_path, run(3, "j"))
    claim = tmp_path / ".pitcrew" / "claim-000001.json"
    claim.unlink()
    owner.check()
    assert claim.exists()
    later = take(tmp_path, run(4, "j"))
    claim.unlink()
    with pytest.raises(claims.Fenced):
        owner.check()
    later.check()


def test_a_claim_that_is_not_whole_fences_all_the_same(tmp_path):
    owner = take(tmp_path, run(0, "j"))
    (tmp_path / ".pitcrew" / "claim-000002.json").write_text('{"v":1,"att')
    with pytest.raises(claims.Fenced, match="claim 2"):
        owner.check()
    assert take(tmp_path, run(1, "j")).epoch == 3


def test_what_is_remembered_is_bounded(tmp_path):
    for n in range(claims.REMEMBERED + 20):
        c = take(tmp_path, run(n, "j"))
        claims.write_base(c, [], None, False)
        claims.write_beat(str(tmp_path), c.epoch, n, 0, 1)
    names = os.listdir(tmp_path / ".pitcrew")
    assert len(names) <= 2 * claims.REMEMBERED + 4
    assert len([n for n in names if n.startswith("beat")]) <= 3


@pytest.mark.parametrize(
    ("before", "after", "progress"),
    [
        (None, None, claims.NONE),
        ({"epoch": 1, "attempt": 0, "step": 3, "count": 1, "at": "a"}, None, claims.NONE),
        (None, {"epoch": 1, "attempt": 0, "step": 3, "count": 1, "at": "a"}, claims.ALIVE),
        (
            {"epoch": 1, "attempt": 0, "step": 3, "count": 1},
            {"epoch": 1, "attempt": 0, "step": 3, "count": 1},
            claims.NONE,
        ),
        (
            {"epoch": 1, "attempt": 0, "step": 3, "count": 1},
            {"epoch": 1, "attempt": 0, "step": 3, "count": 2},
            claims.ALIVE,
        ),
        (
            {"epoch": 1, "attempt": 0, "step": 3, "count": 1},
            {"epoch": 1, "attempt": 0, "step": 4, "count": 2},
            claims.STEPPING,
        ),
        (
            {"epoch": 1, "attempt": 0, "step": 3, "count": 9},
            {"epoch": 2, "attempt": 1, "step": 3, "count": 9},
            claims.ALIVE,
        ),
    ],
)
def test_progress_is_told_by_content(before, after, progress):
    assert claims.progress(before, after) == progress


def test_the_heartbeat_finds_a_later_claim_and_ends_with_its_training(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT_EVERY", 0.01)
    who, fenced, step = run(0, "j"), [], [7]
    owner = Owner(take(tmp_path, who), who)
    beat = custody.Heartbeat(owner, 0, lambda: step[0], fenced.append)
    beat.start()
    deadline = time.monotonic() + 5
    while (claims.beat(str(tmp_path), 1) or {}).get("count", 0) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    told = claims.beat(str(tmp_path), 1)
    assert {k: told[k] for k in ("v", "epoch", "attempt", "step", "ended")} == {
        "v": 1, "epoch": 1, "attempt": 0, "step": 7, "ended": False,
    }  # fmt: skip
    take(tmp_path, run(1, "j"))
    beat.join(5)
    assert len(fenced) == 1 and isinstance(fenced[0], claims.Fenced)
    other = run(1, "j")
    beat = custody.Heartbeat(Owner(take(tmp_path, run(2, "j")), other), 2, lambda: 8, fenced.append)
    beat.start()
    beat.end(5)
    assert claims.beat(str(tmp_path), 3)["ended"] is True and len(fenced) == 1


def lookout(tmp_path, owner, fenced=None):
    seen = []
    look = custody.Lookout(owner, lambda *reading: seen.append(reading), (fenced if fenced is not None else []).append)
    return look, seen


def until(done, seconds=5):
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert done()


def test_a_lookout_shows_the_heartbeat_as_it_goes_on_and_as_it_stands_still(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT_EVERY", 0.01)
    who = run(0, "j")
    owner, began = Owner(take(tmp_path, who), who), time.monotonic_ns()
    look, seen = lookout(tmp_path, owner)
    look.start()
    time.sleep(0.05)
    assert seen == []  # nobody beats yet
    claims.write_beat(str(tmp_path), 1, 0, 41, 1)
    until(lambda: seen)
    claims.write_beat(str(tmp_path), 1, 0, 43, 2)
    until(lambda: seen[-1][:4] == (1, 0, 43, 2))
    still = len(seen)
    until(lambda: len(seen) > still + 3)
    assert {reading[:4] for reading in seen[still:]} == {(1, 0, 43, 2)}
    times = [reading[4] for reading in seen]
    assert times == sorted(set(times)) and began < times[0] <= time.monotonic_ns()
    look.end()
    look.join(5)


def test_a_lookout_ends_its_rank_once_a_later_attempt_claims(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT_EVERY", 0.01)
    who, fenced = run(0, "j"), []
    look, _ = lookout(tmp_path, Owner(take(tmp_path, who), who), fenced)
    look.start()
    take(tmp_path, run(1, "j"))
    look.join(5)
    assert len(fenced) == 1 and isinstance(fenced[0], claims.Fenced)


@pytest.mark.parametrize(
    "beat",
    [
        b"",
        b"{",
        b"[]",
        b'{"epoch": 2, "attempt": 0, "step": 1, "count": 1}',
        b'{"epoch": 1, "attempt": 0, "step": 1}',
        b'{"epoch": 1, "attempt": null, "step": 1, "count": 1}',
    ],
)
def test_what_is_no_heartbeat_of_the_claim_is_no_reading(tmp_path, monkeypatch, beat):
    monkeypatch.setattr(claims, "BEAT_EVERY", 0.01)
    who = run(0, "j")
    look, seen = lookout(tmp_path, Owner(take(tmp_path, who), who))
    (tmp_path / ".pitcrew" / "beat-000001.json").write_bytes(beat)
    look.start()
    time.sleep(0.1)
    assert look.is_alive() and seen == []
    look.end()


def test_a_look_that_the_storage_delays_is_no_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT_EVERY", 0.01)
    monkeypatch.setattr(custody, "READ_WITHIN", 0.02)
    read = claims.beat
    monkeypatch.setattr(claims, "beat", lambda *a: time.sleep(0.04) or read(*a))
    who = run(0, "j")
    claim = take(tmp_path, who)
    claims.write_beat(str(tmp_path), 1, 0, 41, 1)
    look, seen = lookout(tmp_path, Owner(claim, who))
    look.start()
    time.sleep(0.2)
    assert look.is_alive() and seen == []
    look.end()


@pytest.mark.parametrize(
    "world, local, readers",
    [(1, 1, []), (2, 1, [1]), (2, 2, []), (16, 8, [8]), (128, 8, range(8, 128, 8)), (4096, 8, range(256, 4096, 256))],
)
def test_on_each_node_but_the_first_a_rank_reads_and_of_many_nodes_on_sixteen(world, local, readers):
    found = [rank for rank in range(world) if custody.looks_out(rank, rank % local, world, local)]
    assert found == list(readers)


def test_a_heartbeat_that_the_storage_hangs_holds_nobody_up(tmp_path, monkeypatch):
    hang = threading.Event()
    monkeypatch.setattr(claims, "write_beat", lambda *_, **__: hang.wait(60))
    who = run(0, "j")
    beat = custody.Heartbeat(Owner(take(tmp_path, who), who), 0, lambda: 0, lambda error: None)
    beat.start()
    began = time.monotonic()
    beat.end(0.1)
    assert time.monotonic() - began < 1
    hang.set()


def test_ranks_without_a_store_that_claim_at_the_same_moment_make_one_claim(tmp_path, monkeypatch):
    def rank(number):
        who = run(0, "j", run_id="r", launcher=50, started=1000.0 + number, pid=501 + number, host="host")
        return custody.Custody(str(tmp_path), who, lambda: (number, 2), Alone, lambda text: None, lambda: 0, None)

    first, second, create = rank(0), rank(1), claims._create

    def late(directory, record):  # the other rank claims between this rank's look and its claim
        monkeypatch.setattr(claims, "_create", create)
        first.own()
        return create(directory, record)

    monkeypatch.setattr(claims, "_create", late)
    assert second.own().epoch == first.own().epoch == 1
    first.own().check()
    assert first.own().suffix is second.own().suffix is None  # both save into the same directory


@pytest.mark.parametrize("ended", [False, True])
def test_a_second_launch_without_a_store_shares_no_claim_with_the_first(tmp_path, ended):
    def launch(launcher, started, host, rank):
        who = run(0, "j", launcher=launcher, started=started, pid=launcher * 10, host=host)
        place, step = lambda: (rank, 2), lambda: 0
        return custody.Custody(str(tmp_path), who, place, Alone, lambda text: None, step, lambda error: None)

    first = launch(50, 1000.0, "a", 0)
    owner = first.own()
    if ended:
        first.end()
    second = launch(90, 1060.0, "b", 1 if ended else 0)  # within the time in which ranks find one another
    assert second.own().epoch == 2
    first.end()
    second.end()
    with pytest.raises(claims.Fenced):
        owner.check()


def test_a_directory_that_cannot_be_written_is_a_clear_error_unless_it_is_only_read(tmp_path, monkeypatch):
    def mkdir(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(storage.os, "makedirs", mkdir)
    c = custody.Custody(str(tmp_path), run(0, "j"), lambda: (0, 1), Alone, lambda text: None, lambda: 0, None)
    with pytest.raises(claims.ClaimRefused, match=r"EROFS.*read_only=True"):
        c.resume(lambda context: None, lambda m: True)
    assert c.resume(lambda context: None, lambda m: True, read_only=True) is None
    assert os.listdir(tmp_path) == []


def test_the_record_of_a_claim_has_the_documented_fields(tmp_path):
    take(tmp_path, run(2, "job", "run", launcher=7, started=5.0))
    record = json.loads((tmp_path / ".pitcrew" / "claim-000001.json").read_text())
    assert set(record) == {
        "v", "epoch", "attempt", "attempt_known", "managed", "run_id", "job", "master", "started", "launcher", "host",
        "space", "pid", "pid_started", "rank", "shared_attempt", "claimed_at",
    }  # fmt: skip
