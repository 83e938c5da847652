"""The ring: a memory-mapped black box that one rank writes and the node agent reads.

Promises: the layout of docs/hook-protocol.md section 2; one writer; every 8-byte field is written with one aligned
store, so a reader never sees half of one; a record's sequence number is 0 while the record is being written, and a
fence comes between a record and the count that publishes it. Writing never raises, makes no system call and waits for
no disk: a ring whose file would not be in memory lives in plain memory, from where `ringcopy` copies it, and so does
one whose directory cannot be written. Callers need no second path.

No torch here.
"""

import _thread
import mmap
import os
import struct
import sys
import time

from .filesystem import not_in_memory

MAGIC = b"PCRING01"
VERSION = 1
HEADER_SIZE = 4096
RECORD_SIZE = 128
CAPACITY = 1024

FLAG_LAUNCHER, FLAG_CAN_SAVE, FLAG_SNAPSHOT, FLAG_RESUMED, FLAG_SETTLES, FLAG_TOKENS, FLAG_COPIED = (
    1 << bit for bit in range(7)
)
EXIT_RUNNING, EXIT_CLEAN, EXIT_EXCEPTION = 0, 1, 2
RECORD_LOSS, RECORD_GRAD_NORM, RECORD_NOT_FINITE, RECORD_DEVICE = 1, 2, 4, 8

DATA, FORWARD, BACKWARD, OPTIMIZER, COMM = range(5)  # a step's parts, in the order in which `record` takes them
SECTIONS = ("setup", "step", "checkpoint", "eval", "held", "out", "other")
SECTION_NUMBER = {name: number for number, name in enumerate(SECTIONS)}
OTHER = SECTION_NUMBER["other"]

# Header fields: name -> (offset, struct format). The one table that writer, reader and golden files follow.
HEADER = {
    "magic": (0, "8s"),
    "version": (8, "I"),
    "header_size": (12, "I"),
    "record_size": (16, "I"),
    "capacity": (20, "I"),
    "rank": (24, "I"),
    "local_rank": (28, "I"),
    "world_size": (32, "I"),
    "attempt": (36, "I"),
    "pid": (40, "I"),
    "flags": (44, "I"),
    "start_unix_ns": (48, "Q"),
    "start_ns": (56, "Q"),
    "gpu_uuid": (64, "64s"),
    "torch_version": (128, "64s"),
    "job_uid": (192, "64s"),
    "role": (256, "64s"),
    "workload": (320, "128s"),
    "heartbeat_ns": (512, "Q"),
    "records": (520, "Q"),
    "step": (528, "Q"),
    "step_ns": (536, "Q"),
    "section": (544, "I"),
    "exit": (548, "I"),
    "section_ns": (552, "Q"),
    "checkpoint_step": (560, "Q"),
    "checkpoint_ns": (568, "Q"),
    "checkpoint_save_ns": (576, "Q"),
    "resumed_step": (584, "Q"),
    "section_name": (592, "32s"),
    "last_error": (640, "256s"),
    "settled": (896, "Q"),
    "nonfinite": (904, "Q"),
    "memory_allocated": (912, "Q"),
    "memory_reserved": (920, "Q"),
    "memory_peak": (928, "Q"),
    "memory_retries": (936, "Q"),
    "memory_ns": (944, "Q"),
    "flops_per_step": (952, "d"),
    "peak_flops": (960, "d"),
    "checkpoint_bytes": (968, "Q"),
    "copied_ns": (976, "Q"),
    "claim_epoch": (984, "Q"),
    "claim_attempt": (992, "Q"),
    "claim_step": (1000, "Q"),
    "claim_count": (1008, "Q"),
    "claim_read_ns": (1016, "Q"),
}

RECORD_FIELDS = (
    "seq",
    "end_ns",
    "step",
    "section",
    "flags",
    "duration_ns",
    "data_ns",
    "forward_ns",
    "backward_ns",
    "optimizer_ns",
    "comm_ns",
    "launch_ns",
    "loss",
    "grad_norm",
    "samples",
    "unused_0",
    "unused_1",
)
# On a little-endian machine CPython packs "<Q" with one native 8-byte store; a big-endian one would need another ring.
RECORD = struct.Struct("<QQQIIQQQQQQQddQQQ")
_pack_body = struct.Struct("<QQIIQQQQQQQddQQQ").pack_into  # all but seq
_pack_brief = struct.Struct("<QQIIQ48xddQ16x").pack_into  # the same with zeros for what was not measured
# A whole record for `steps`, which writes most of them itself: end, step, section and flags in one, duration, loss and
# samples. Zeros for the rest and for seq, which is stored last.
pack_plain = struct.Struct("<8xQQQQ48xd8xQ16x").pack_into
PLAIN = SECTION_NUMBER["step"]  # section and flags of a step without a loss
PLAIN_LOSS = PLAIN | RECORD_LOSS << 32

_U64 = {name: offset // 8 for name, (offset, fmt) in HEADER.items() if fmt == "Q"}
_U32 = {name: offset // 4 for name, (offset, fmt) in HEADER.items() if fmt == "I"}
RECORDS, STEP, STEP_NS = (_U64[n] for n in ("records", "step", "step_ns"))
_HEARTBEAT, SETTLED, COPIED = (_U64[n] for n in ("heartbeat_ns", "settled", "copied_ns"))
_NAME = HEADER["section_name"][0]
ALL = (1 << 64) - 1  # settled: no record waits for values


# Whether the training thread needs no fence of its own: x86-64 keeps the order of stores, and a side thread that takes
# the GIL sees all that was stored before, as this thread does once it has the GIL again.
ORDERED = os.uname().machine in ("x86_64", "amd64") and getattr(sys, "_is_gil_enabled", lambda: True)()


def fence():
    """What was stored before is visible before what is stored after, and loads do not pass it either.

    A release and then an acquire of a lock: a full barrier on x86-64 and on arm64, with the GIL and without it
    (docs/hook-protocol.md argues it).
    """
    lock = _thread.allocate_lock()
    lock.acquire()
    lock.release()
    lock.acquire()


def margin(capacity):
    """How many of the oldest records a reader leaves out, because they may be overwritten while it reads."""
    return max(2, capacity // 16)


def _text(value, size):
    """The value as NUL-padded UTF-8 of at most size-1 bytes, never cut inside a character."""
    raw = str(value).encode("utf-8", "replace")[: size - 1]
    return raw.decode("utf-8", "ignore").encode().ljust(size, b"\0")


class Ring:
    """One rank's ring. Open it with `Ring.create`."""

    __slots__ = (
        "_buffer", "_mask", "_u32", "acquire", "capacity", "copy_to", "medium", "path", "raw", "release", "sequence",
        "words",
    )  # fmt: skip

    def __init__(self, buffer, capacity, path=None):
        self.path = path
        self.capacity = capacity
        self._buffer = buffer
        self.raw = memoryview(buffer)
        self.words = self.raw.cast("Q")
        self._u32 = self.raw.cast("I")
        self._mask = capacity - 1
        self.sequence = 0  # of the newest record
        self.medium = None  # the file system of the file, unless that is in memory
        self.copy_to = None  # the file's descriptor then
        # The lock of `fence` below. It is held all the time, but for the moment of a fence.
        lock = _thread.allocate_lock()
        lock.acquire()
        self.release, self.acquire = lock.release, lock.acquire

    def fence(self):
        """`fence` for the training thread alone, and cheaper. It never waits, also where a signal handler comes in
        between and calls it or raises."""
        if ORDERED:
            return
        try:
            self.release()
        except RuntimeError:
            pass
        self.acquire(False)

    @classmethod
    def create(cls, path, *, capacity=CAPACITY, clock=time.monotonic_ns, wall=time.time_ns, pid=None, **header):
        """Write a new ring at path (beside it, then renamed, so that a reader's old mapping is never truncated).

        path None gives a ring in plain memory. header: rank, local_rank, world_size, attempt, flags, gpu_uuid,
        torch_version, job_uid, role, workload. Raises OSError when the file cannot be made.
        """
        if capacity < 1 or capacity & (capacity - 1):
            raise ValueError("ring capacity %r is not a power of two" % (capacity,))
        size = HEADER_SIZE + capacity * RECORD_SIZE
        if path is None:
            ring = cls(bytearray(size), capacity)
            ring._describe(capacity, clock(), wall(), pid, header)
            return ring
        temporary = "%s.%d.tmp" % (path, os.getpid())
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            # Reserved now, so that a full disk is an error here and not a SIGBUS in the middle of training; and written
            # to, so that training does not wait for the pages either.
            os.posix_fallocate(fd, 0, size)
            medium = not_in_memory(fd)
            ring = cls(bytearray(size) if medium else mmap.mmap(fd, size), capacity, path)
            ring.raw[:: mmap.PAGESIZE] = bytes(len(range(0, size, mmap.PAGESIZE)))
            ring._describe(capacity, clock(), wall(), pid, header)
            if medium:
                ring.flag(FLAG_COPIED)
                ring.set("copied_ns", clock())
                os.pwrite(fd, ring.raw, 0)
                ring.medium, ring.copy_to = medium, os.dup(fd)
            os.rename(temporary, path)
            return ring
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(fd)

    def _describe(self, capacity, now, wall, pid, header):
        values = {
            "magic": MAGIC,
            "version": VERSION,
            "header_size": HEADER_SIZE,
            "record_size": RECORD_SIZE,
            "capacity": capacity,
            "pid": os.getpid() if pid is None else pid,
            "start_unix_ns": wall,
            "start_ns": now,
            "heartbeat_ns": now,
            "step_ns": now,
            "section_ns": now,
            "section_name": SECTIONS[0],
            "settled": ALL,
        }
        values.update(header)
        values["flags"] = values.get("flags", 0) | FLAG_SETTLES
        for name, value in values.items():
            self.set(name, value)

    def set(self, name, value):
        """Write one header field by its name in HEADER, after what was written before. For rare writes; the step path
        has its own."""
        fence()
        offset, fmt = HEADER[name]
        if fmt == "Q":
            self.words[offset // 8] = value
        elif fmt == "I":
            self._u32[offset // 4] = value
        elif fmt == "d":
            struct.pack_into("<d", self.raw, offset, value)
        else:
            size = int(fmt[:-1])
            self.raw[offset : offset + size] = value if name == "magic" else _text(value, size)

    def flag(self, flag):
        fence()
        self._u32[_U32["flags"]] |= flag

    def beat(self, now):
        self.words[_HEARTBEAT] = now

    def section(self, name, now):
        """Enter a section. An unknown name is section `other` with that name."""
        self.set("section_name", name)
        self.words[_U64["section_ns"]] = now
        fence()
        self._u32[_U32["section"]] = SECTION_NUMBER.get(name, OTHER)

    def now(self):
        """What `pong` reports of the rank: last step and section, and when each began to count. The ring's file may be
        a copy that is late."""
        words, section = self.words, self._u32[_U32["section"]]
        named = self.raw[_NAME : _NAME + 32].tobytes().split(b"\0")[0].decode("utf-8", "replace")
        return {
            "step": words[STEP],
            "step_ns": words[STEP_NS],
            "section": named if section == OTHER else SECTIONS[section],
            "section_ns": words[_U64["section_ns"]],
        }

    def checkpoint(self, step, now, save_ns, size=0):
        self.words[_U64["checkpoint_save_ns"]] = save_ns
        self.words[_U64["checkpoint_bytes"]] = size
        self.words[_U64["checkpoint_ns"]] = now
        fence()
        self.words[_U64["checkpoint_step"]] = step

    def claim(self, epoch, attempt, step, count, read):
        """What this rank read of rank 0's heartbeat on the storage, by a look that began at `read`, monotonic ns."""
        for name, value in zip(("epoch", "attempt", "step", "count"), (epoch, attempt, step, count)):
            self.words[_U64["claim_" + name]] = value
        fence()
        self.words[_U64["claim_read_ns"]] = read

    def memory(self, now, allocated, reserved, peak, retries):
        """What the accelerator's allocator says, in bytes; retries: allocations that had to flush its cache first."""
        for name, value in zip(("allocated", "reserved", "peak", "retries"), (allocated, reserved, peak, retries)):
            self.words[_U64["memory_" + name]] = value
        fence()
        self.words[_U64["memory_ns"]] = now

    def nonfinite(self):
        """Another loss or gradient norm was not finite."""
        self.words[_U64["nonfinite"]] += 1

    def error(self, text):
        lines = str(text).splitlines()
        self.set("last_error", lines[0] if lines else "")

    def resumed(self, step, now):
        """Training goes on from step: the header says so, no record is written."""
        self.words[_U64["resumed_step"]] = step
        self.words[STEP_NS] = now
        self.words[STEP] = step
        self.flag(FLAG_RESUMED)

    def record(
        self, step, now, duration, section=1, flags=0, loss=0.0, grad_norm=0.0, samples=0, phases=None
    ):  # fmt: skip
        """A step ended. Called on the training thread: a few stores, no system call. Durations in ns, 0 for unknown;
        phases: those of DATA ... COMM, None where none was measured."""
        u64 = self.words
        seq = self.sequence + 1
        self.sequence = seq
        offset = HEADER_SIZE + ((seq - 1) & self._mask) * RECORD_SIZE
        at = offset >> 3
        u64[at] = 0
        if phases is None:
            _pack_brief(self.raw, offset + 8, now, step, section, flags, duration, loss, grad_norm, samples)
        else:
            _pack_body(
                self.raw, offset + 8, now, step, section, flags, duration, *phases, 0, loss, grad_norm, samples, 0, 0
            )
        u64[at] = seq
        self.fence()
        u64[RECORDS] = seq
        u64[STEP_NS] = now
        u64[STEP] = step
        return seq

    def amend(self, seq, flags=0, **values):
        """Fill in values of an earlier record that came late, where the ring still holds it. flags are added.

        Only for records after the last one that was settled: what is settled has been read."""
        offset = HEADER_SIZE + ((seq - 1) & self._mask) * RECORD_SIZE
        if self.words[offset >> 3] != seq:
            return
        for name, value in values.items():
            at, fmt = _LATE[name]
            struct.pack_into(fmt, self.raw, offset + at, value)
        if flags:
            self._u32[(offset + 28) >> 2] |= flags

    def longest(self, among=16):
        """Nanoseconds: the longest of the last steps."""
        last = range(max(self.sequence - among, 0), self.sequence)
        return max((self.words[(HEADER_SIZE + (i & self._mask) * RECORD_SIZE + 32) >> 3] for i in last), default=0)

    def settle(self, seq=ALL):
        """Records up to this one will not be amended any more; the later ones may be, until told otherwise."""
        fence()
        self.words[SETTLED] = seq


# What may come late: name -> (offset in the record, struct format).
_LATE = {
    "forward": (48, "<Q"),
    "backward": (56, "<Q"),
    "optimizer": (64, "<Q"),
    "comm": (72, "<Q"),
    "launch": (80, "<Q"),
    "loss": (88, "<d"),
    "grad_norm": (96, "<d"),
}


def parse(data):
    """A ring's bytes as {"header": {...}, "records": [...]}, oldest record first. For tests and golden files."""
    header = {}
    for name, (offset, fmt) in HEADER.items():
        (value,) = struct.unpack_from("<" + fmt, data, offset)
        header[name] = value.split(b"\0")[0].decode("utf-8", "replace") if isinstance(value, bytes) else value
    if header["magic"] != MAGIC.decode():
        raise ValueError("not a ring: magic %r" % (header["magic"],))
    records = []
    for i in range(header["capacity"]):
        values = dict(zip(RECORD_FIELDS, RECORD.unpack_from(data, HEADER_SIZE + i * RECORD_SIZE)))
        if values["seq"]:
            records.append(values)
    records.sort(key=lambda r: r["seq"])
    return {"header": header, "records": records}


def read(path):
    with open(path, "rb") as f:
        return parse(f.read())
