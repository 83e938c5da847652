"""Who owns a checkpoint directory: numbered claims on the storage itself (docs/decisions/0030).

Promises: claims are ordered by their numbers, which the storage hands out one at a time, never by clocks; a claim is
refused where the directory belongs to a later attempt, or to another job that is alive; `Claim.check` raises `Fenced`
once a later claim exists. Every write, manifest, rename and deletion calls it first.

No torch here.
"""

import contextlib
import errno
import json
import os
import re
import time

from . import storage

DIRECTORY = ".pitcrew"
REMEMBERED = 64  # claims that stay on the storage
BEAT_EVERY = 5.0  # seconds between two heartbeats of a claim
WATCHED = 2.4 * BEAT_EVERY  # seconds without a change after which another job's heartbeat counts as stopped
CLOCK_SKEW = 5.0  # seconds that clocks of two nodes may differ, where only start times order two runs
_CLAIM = re.compile(r"^claim-(\d+)\.json$")
_BEAT = re.compile(r"^beat-(\d+)\.json$")
_BASE = re.compile(r"^base-(\d+)\.json$")
_TRIES = 1000  # claims of others that come between the reading and the writing of one's own


class Fenced(Exception):
    """A later attempt owns the checkpoint directory. This one must not write there any more."""


class ClaimRefused(Exception):
    """The checkpoint directory belongs to somebody else. The text names both claims and the remedy."""


class Claim:
    """One attempt's right to write. `epoch` is its number; `suffix` is the epoch that directory names carry, or None
    where the attempt number alone tells them apart."""

    def __init__(self, root, record):
        self.root = root
        self.record = record
        self.epoch = record["epoch"]
        self.suffix = self.epoch if record.get("shared_attempt") else None

    def check(self):
        """Raise Fenced if a later claim exists. One request to the storage where nothing has changed."""
        path = os.path.join(self.root, DIRECTORY)
        there = _numbers(_CLAIM, storage.names(path, absent=[]))
        if there and there[-1] > self.epoch:
            later = dict(_read(path, there[-1]), epoch=there[-1])
            raise Fenced(
                "%s was claimed by %s after %s claimed it. This attempt has stopped and has written nothing since; its "
                "checkpoints stay. Remedy: none if the later attempt is meant; otherwise stop that one and start this "
                "job again" % (self.root, described(later), described(self.record))
            )
        if there and self.epoch not in there:
            raise Fenced("%s: %s was removed, and others have claimed it" % (self.root, described(self.record)))
        if not there:
            _create(path, self.record)  # somebody cleared the directory, and nobody has claimed it since


def _numbers(pattern, names):
    """The numbers in the names that match, in order."""
    return sorted(int(match.group(1)) for match in map(pattern.match, names) if match)


def described(record):
    if "v" not in record:
        return "claim %s, which cannot be read" % record.get("epoch")
    named = {
        "attempt": "attempt",
        "run_id": "run",
        "job": "job",
        "host": "host",
        "pid": "pid",
        "claimed_at": "claimed at",
    }
    fields = ("%s %s" % (word, record[name]) for name, word in named.items() if record.get(name) not in (None, ""))
    return "claim %s (%s)" % (record.get("epoch") or "to be made", ", ".join(fields))


def _name(epoch):
    return "claim-%06d.json" % epoch


def _read(directory, epoch):
    """A claim's record, or {} for one that is not whole."""
    try:
        record = json.loads(storage.listed(directory, _name(epoch)))
    except ValueError:
        record = {}
    return record if isinstance(record, dict) else {}


def history(root):
    """All claims of a directory that are remembered, oldest first."""
    directory = os.path.join(root, DIRECTORY)
    numbers = _numbers(_CLAIM, storage.names(directory, absent=[]))
    return [dict(_read(directory, number), epoch=number) for number in numbers]


def _create(directory, record):
    """Put the record there under its number. False where another claim has the number."""
    data, final = storage.encode(record), os.path.join(directory, _name(record["epoch"]))
    temporary = os.path.join(directory, ".claim.%s.%d.tmp" % (record.get("host", ""), os.getpid()))

    def act():
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        try:
            os.link(temporary, final)
        except OSError as error:
            if _is(final, data):  # the link is there although its answer was lost
                return True
            if error.errno == errno.EEXIST:
                return False
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
            return _create_alone(final, data)  # a file system without hard links
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return True

    made = storage.retried("claim", final, act)
    if made:
        storage.sync(directory)
    return made


def _is(path, data):
    try:
        with open(path, "rb") as f:
            return f.read(len(data) + 1) == data
    except OSError:
        return False


def _create_alone(final, data):
    try:
        fd = os.open(final, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return _is(final, data)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


def take(root, who, rank=None, sleep=time.sleep, take_over=False, ours=lambda claim: False):
    """Claim the directory for `who`, a run.Run. Raises ClaimRefused, or a StorageError where it cannot be written.

    ours(claim): whether another rank of this run made the newest claim. It then serves for this rank too. It is asked
    of the very claims that a new one would follow: ranks that claim at the same moment make one claim."""
    directory = os.path.join(root, DIRECTORY)
    try:
        storage.make_directory(directory)
        for _ in range(_TRIES):
            past = history(root)
            if past and (who.is_process(past[-1]) or ours(past[-1])):
                return Claim(root, past[-1])
            if not take_over:
                refusal = refused(who, past) or _in_use(root, who, past, sleep)
                if refusal:
                    raise ClaimRefused("%s: %s" % (root, refusal))
                past = history(root)  # the look at a heartbeat takes seconds
                if past and ours(past[-1]):
                    return Claim(root, past[-1])
                refusal = refused(who, past)
                if refusal:
                    raise ClaimRefused("%s: %s" % (root, refusal))
            record = who.record(
                epoch=past[-1]["epoch"] + 1 if past else 1,
                rank=rank,
                shared_attempt=_shared(root, who.attempt, past),
                claimed_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            )
            if _create(directory, record):
                _forget(directory, past)
                return Claim(root, record)
    except storage.StorageError as error:
        error.remedy += ". A process that only reads checkpoints calls resume(read_only=True), which makes no claim"
        raise
    raise ClaimRefused("%s: %d others claimed it at the same time" % (root, _TRIES))


def _shared(root, attempt, past):
    """Whether another claim or an older checkpoint used the same attempt number, so that names need the epoch."""
    from .checkpoint import parse_name

    if any(claim.get("attempt") == attempt for claim in past):
        return True
    named = (parse_name(name) for name in storage.names(root, absent=[]))
    return any(key is not None and key[1] == attempt for key in named)


def _forget(directory, past):
    """Delete what nobody needs any more: claims beyond REMEMBERED, heartbeats of all earlier claims but the newest."""
    with contextlib.suppress(OSError):
        old = {claim["epoch"] for claim in past[: -REMEMBERED + 1]}
        for name in os.listdir(directory):
            claim, beat, base = _CLAIM.match(name), _BEAT.match(name), _BASE.match(name)
            gone = (claim or base) and int((claim or base).group(1)) in old
            if gone or (beat and past and int(beat.group(1)) < past[-1]["epoch"]):
                os.unlink(os.path.join(directory, name))


def refused(who, past):
    """Why the directory's claims leave no room for this run, or "". Numbers of claims decide, and clocks only where a
    run that never claimed meets another run."""
    past = [claim for claim in past if "v" in claim]  # one that is not whole was never used
    newest = past[-1] if past else {}
    if not newest or who.is_instance(newest):
        if newest.get("attempt", 0) > who.attempt:
            return "attempt %d is over: %s came after it" % (who.attempt, described(newest))
        return ""
    both = "this is %s, the newest is %s" % (described(who.record()), described(newest))
    if who.managed and who.same_job(newest):  # the remediator numbers the attempts of a job, across its launchers
        if newest.get("attempt", 0) < who.attempt:
            return ""
        if newest.get("managed") and newest["attempt"] > who.attempt:
            return "a later attempt owns this directory: %s. Remedy: let this attempt end" % both
    remedy = "Remedy: let this run end, or start the job again from its launcher. PITCREW_TAKE_OVER=1 claims it anyway"
    if any(who.is_instance(claim) for claim in past):
        return "a newer run claimed this directory after this run had claimed it: %s. %s" % (both, remedy)
    if who.same_job(newest) and newest.get("started", 0) > who.started + CLOCK_SKEW:
        return "a run that started %.0f s after this one owns this directory: %s. %s" % (
            newest["started"] - who.started, both, remedy,
        )  # fmt: skip
    return ""


def _in_use(root, who, past, sleep):
    """Why another job's claim must not be taken over: its heartbeat goes on. Looks for WATCHED seconds where only the
    heartbeat can tell."""
    past = [claim for claim in past if "v" in claim]
    newest = past[-1] if past else {}
    if not newest or who.is_instance(newest) or who.same_job(newest):
        return ""
    before = beat(root, newest["epoch"])
    if before is None or before.get("ended") or who.knows_dead(newest):
        return ""
    until = time.monotonic() + WATCHED
    while time.monotonic() < until:
        sleep(WATCHED / 12)
        after = beat(root, newest["epoch"])
        if after is not None and after.get("ended"):
            return ""
        if progress(before, after) != NONE:
            return (
                "another job is training in this directory: this is %s, the owner is %s, and its heartbeat goes on "
                "(step %s). Remedy: give each job its own checkpoint_dir; pass read_only=True to resume() to evaluate; "
                "set one PITCREW_JOB_UID for all starts of a job; PITCREW_TAKE_OVER=1 claims it and stops the owner"
                % (described(who.record()), described(newest), after.get("step"))
            )
    return ""


# ---- heartbeats

NONE, ALIVE, STEPPING = "none", "alive", "stepping"


def beat(root, epoch):
    """The heartbeat of a claim, or None where there is none yet."""
    path = os.path.join(root, DIRECTORY, "beat-%06d.json" % epoch)
    storage.revalidate(path)
    try:
        value = json.loads(storage.read(path, absent=b"null"))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def write_beat(root, epoch, attempt, step, count, ended=False):
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    value = {"v": 1, "epoch": epoch, "attempt": attempt, "step": step, "count": count, "at": at, "ended": ended}
    path = os.path.join(root, DIRECTORY, "beat-%06d.json" % epoch)
    storage.write_whole(path, storage.encode(value), durable=False)


def progress(before, after):
    """What a claim's heartbeat shows between two readings, by content and not by clocks: STEPPING, ALIVE (it beats, and
    the step is the same) or NONE. A heartbeat that was not there and is now counts as alive."""
    if not after:
        return NONE
    if not before:
        return ALIVE
    if (before.get("epoch"), before.get("attempt")) != (after.get("epoch"), after.get("attempt")):
        return ALIVE
    if before.get("step") != after.get("step"):
        return STEPPING
    return ALIVE if (before.get("count"), before.get("at")) != (after.get("count"), after.get("at")) else NONE


# ---- what a claim found


def write_base(claim, seen, chosen, fresh):
    """Record which checkpoints of this run's past were complete when the claim was made, which one it resumed from, and
    whether it started over on purpose."""
    value = {"v": 1, "epoch": claim.epoch, "seen": sorted(seen), "chosen": chosen, "fresh": bool(fresh)}
    path = os.path.join(claim.root, DIRECTORY, "base-%06d.json" % claim.epoch)
    storage.write_whole(path, storage.encode(value))


def bases(root):
    """{epoch: what the claim found}, of those claims that recorded it."""
    directory, found = os.path.join(root, DIRECTORY), {}
    for name in storage.names(directory, absent=[]):
        match = _BASE.match(name)
        if match:
            with contextlib.suppress(ValueError):
                value = json.loads(storage.listed(directory, name))
                if isinstance(value, dict) and isinstance(value.get("seen"), list):
                    found[int(match.group(1))] = value
    return found
