"""The ring of a directory that is not in memory: it lives in plain memory, and a thread copies it to the file.

A store to a mapped file on a disk faults into the file system, which may wait for the disk while it holds the GIL. So
training writes to plain memory only. Promises: the copying thread holds no lock and runs no Python while it waits for
the disk; the file is always a ring that a reader can read by the rules of docs/hook-protocol.md section 2; `copied_ns`
says when its header was taken, so a copy that stands still is told apart from a rank that does.

No torch here.
"""

import os
import struct
import threading
import time

from .ring import ALL, COPIED, HEADER_SIZE, RECORD_SIZE, RECORDS, SETTLED, fence, margin

EVERY = 0.05  # seconds between two copies
FIELDS = 1024  # bytes of the header page that hold fields


class RingCopy(threading.Thread):
    """Copies ring to the file fd, which it closes at the end."""

    def __init__(self, ring, fd, trouble):
        super().__init__(name="pitcrew-ring", daemon=True)
        self._ring = ring
        self._fd = fd
        self._trouble = trouble
        self._failed = False
        self._final = 0  # records up to this one are in the file and will not change
        self._counted = 0  # records that the file says were written
        self._due = threading.Event()
        self._done = threading.Event()
        self._over = False

    def run(self):
        while True:
            asked = self._due.wait(EVERY)
            if asked:
                self._due.clear()
            try:
                self.copy()
            except OSError as error:
                if not self._failed:
                    self._failed = True
                    self._trouble(error)
            if asked:
                self._done.set()
                if self._over:
                    os.close(self._fd)
                    return

    def flush(self, timeout, over=False):
        """Wait until what is in the ring now is in the file, timeout seconds at most."""
        self._over = self._over or over
        self._done.clear()
        self._due.set()
        return self._done.wait(timeout) if self.is_alive() else False

    def copy(self):
        ring = self._ring
        capacity, words = ring.capacity, ring.words
        written, settled = words[RECORDS], words[SETTLED]
        fence()
        first = max(self._final + 1, written - capacity + 1, 1)
        self._count(first - 1)  # those that this thread came too late for
        while first <= written:
            # So few that a reader, which knows how far the file was before, leaves out what is being overwritten; and
            # in one piece.
            slot = (first - 1) % capacity
            last = min(written, first + margin(capacity) - 3, first + capacity - slot - 1)
            last = max(last, first)
            self._copy_records(first, last)
            first = last + 1
        now = time.monotonic_ns()  # before the reading: the header is not older than it says
        header = bytearray(ring.raw[:FIELDS])
        struct.pack_into("<Q", header, RECORDS * 8, written)
        struct.pack_into("<Q", header, SETTLED * 8, settled)
        struct.pack_into("<Q", header, COPIED * 8, now)
        os.pwrite(self._fd, header, 0)
        self._final = written if settled == ALL else min(settled, written)

    def _count(self, number):
        if number > self._counted:
            self._counted = number
            os.pwrite(self._fd, struct.pack("<Q", number), RECORDS * 8)

    def _copy_records(self, first, last):
        ring = self._ring
        offset = HEADER_SIZE + (first - 1) % ring.capacity * RECORD_SIZE
        data = bytearray(ring.raw[offset : offset + (last - first + 1) * RECORD_SIZE])
        fence()
        begun = ring.words[RECORDS] + 2  # training may be writing this one by now
        for number in range(first, min(last, begun - ring.capacity) + 1):
            struct.pack_into("<Q", data, (number - first) * RECORD_SIZE, 0)  # overwritten meanwhile
        os.pwrite(self._fd, data, offset)
        self._count(last)
