package hook

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrRingTruncated is the error of a ring whose file became shorter than its header says.
var ErrRingTruncated = errors.New("ring file is cut short")

// Ring is an open ring file. It stays readable after its writer has died and after the file was replaced or removed.
//
// The file is read with pread and never mapped: a mapping of a file that its owner cuts short kills the reader
// with SIGBUS. Reading the header page costs about a microsecond. A Ring is safe for concurrent use.
type Ring struct {
	file *os.File
	id   Identity
	text [5]string // GPU, torch, job, role and work: they do not change either
	now  func() uint64
}

// Monotonic is CLOCK_MONOTONIC in nanoseconds, the clock of the rings.
func Monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// OpenRing opens and checks the ring of a local rank. now is the clock of the readings; nil means Monotonic.
func OpenRing(dir *Dir, local int, now func() uint64) (*Ring, error) {
	if now == nil {
		now = Monotonic
	}
	// O_NONBLOCK: opening a FIFO put in a ring's place must not wait for a writer.
	f, err := dir.open(RingName(local), unix.O_RDONLY|unix.O_NONBLOCK, unix.S_IFREG, "a regular file")
	if err != nil {
		return nil, err
	}
	r := &Ring{file: f, now: now}
	s, err := r.read()
	if err == nil && s.LocalRank != local {
		err = fmt.Errorf("ring header: local rank %d in the file of local rank %d", s.LocalRank, local)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	r.id, r.text = s.Identity, said(&s)
	return r, nil
}

// Close closes the file.
func (r *Ring) Close() error { return r.file.Close() }

// Identity is what the ring said of itself when it was opened.
func (r *Ring) Identity() Identity { return r.id }

func said(s *Snapshot) [5]string {
	return [...]string{s.GPUUUID, s.Torch, s.JobUID, s.Role, s.Workload}
}

// Snapshot reads the header. A ring whose identity has changed since it was opened is refused: a new process writes
// a new file.
func (r *Ring) Snapshot() (Snapshot, error) {
	s, err := r.read()
	if err == nil && (s.Identity != r.id || said(&s) != r.text) {
		err = fmt.Errorf("ring header: identity changed from %+v, %q to %+v, %q in place", r.id, r.text, s.Identity, said(&s))
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("%s: %w", r.file.Name(), err)
	}
	return s, nil
}

// pages are buffers for headers: each rank's is read ten times a second.
var pages = sync.Pool{New: func() any { return new([ringHeaderSize]byte) }}

func (r *Ring) read() (Snapshot, error) {
	page := pages.Get().(*[ringHeaderSize]byte)
	defer pages.Put(page)
	if err := r.readAt(page[:], 0); err != nil {
		return Snapshot{}, err
	}
	fi, err := r.file.Stat()
	if err != nil {
		return Snapshot{}, err
	}
	return decodeHeader(page[:], fi.Size(), r.now())
}

func (r *Ring) readAt(b []byte, off int64) error {
	n, err := r.file.ReadAt(b, off)
	if errors.Is(err, io.EOF) && n < len(b) {
		return fmt.Errorf("%w: %d of %d bytes at %d", ErrRingTruncated, n, len(b), off)
	}
	if n == len(b) {
		return nil
	}
	return err
}

// Records returns the records after number since, at most max and the newest of them, oldest first. Records that were
// overwritten or are being written are left out. s is a recent Snapshot of the same ring; the number to go on from is
// s.Written.
func (r *Ring) Records(s *Snapshot, since uint64, max int) ([]Record, error) {
	n := s.Written
	if since >= n || max <= 0 {
		return nil, nil
	}
	count := min(n-since, uint64(max), s.capacity)
	first := n - count + 1
	// Three readings in this order: the count (s), the records, the count again (docs/hook-protocol.md, section 2).
	buf, end := make([]byte, count*ringRecordSize), make([]byte, 8)
	fence.Add(1)
	err := r.readRecords(buf, first, s.capacity)
	fence.Add(1)
	if err == nil {
		err = r.readAt(end, ringWrittenOffset)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.file.Name(), err)
	}
	return published(buf, first, s.capacity, le.Uint64(end)), nil
}

// fence orders the readings before it and those after it: an atomic add is a full barrier.
var fence atomic.Uint64

// published decodes consecutive records from number first, read after they were counted and before the count was
// written. It leaves out those that may have been overwritten in the meantime.
func published(buf []byte, first, capacity, written uint64) []Record {
	count := uint64(len(buf) / ringRecordSize)
	out := make([]Record, 0, count)
	for i := range count {
		if first+i+capacity <= written+ringMargin(capacity) {
			continue
		}
		if rec, ok := decodeRecord(buf[i*ringRecordSize:], first+i); ok {
			out = append(out, rec)
		}
	}
	return out
}

// ringMargin is how many of the oldest records a reader leaves out because the writer may be overwriting them: 2 for
// a writer that stores into the file, more for one that copies a batch of records into it.
func ringMargin(capacity uint64) uint64 { return max(2, capacity/16) }

// readRecords fills b with consecutive records from number first, in one read or, around the end of the ring, two.
func (r *Ring) readRecords(b []byte, first, capacity uint64) error {
	slot := (first - 1) % capacity
	head := min(uint64(len(b)), (capacity-slot)*ringRecordSize)
	if err := r.readAt(b[:head], ringHeaderSize+int64(slot)*ringRecordSize); err != nil {
		return err
	}
	if head == uint64(len(b)) {
		return nil
	}
	return r.readAt(b[head:], ringHeaderSize)
}

// same says whether two open rings are the same file.
func (r *Ring) same(o *Ring) bool {
	a, err := r.file.Stat()
	b, err2 := o.file.Stat()
	return err == nil && err2 == nil && os.SameFile(a, b)
}
