package xidreceiver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/receivers/xidreceiver/internal/tail"
	"github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"
)

// follow is where the reading stands.
type follow struct {
	boot string
	// stored is how far an earlier process came in this boot; known is true where
	// there was one at all, so that all of this boot is news.
	stored *position
	known  bool
	// last is the last record taken, in this process.
	last    position
	started bool // last is set
	// catchUp is true while a log is read again from its beginning: up to last
	// its records were taken before.
	catchUp bool
	// stale counts beginnings of the log that are still ahead: what stands
	// before the last one is of an earlier boot.
	stale      int
	overrun    bool
	lost       lostLines
	saved      position // how far the stored position is
	clipped    uint64
	toldForged bool
	stamp      kernel.Stamp // of the record at hand
	buf        []byte
}

// lostLines gathers losses so that a flood of gaps is not a flood of records.
type lostLines struct {
	count  uint64
	reason string
	at     time.Duration
	said   time.Time
}

const lostEvery = time.Second

// restore takes over what an earlier process left.
func (f *follow) restore(p *position, parser *kernel.Parser) {
	if p == nil {
		return
	}
	f.known = true
	if p.BootID != f.boot || f.boot == "" {
		return
	}
	f.stored = p
	for at, uuid := range p.UUIDs {
		if a, ok := kernel.ParseAddress(at); ok {
			parser.Learn(a, uuid)
		}
	}
}

// read takes lines until the source fails or ctx ends.
func (r *logReceiver) read(ctx context.Context, src tail.Source) error {
	f := &r.follow
	f.stale, f.clipped, f.catchUp = 0, 0, f.started
	if !src.Device() {
		f.stale = beginnings(r.cfg.Path)
	}
	anything := false
	for {
		line, err := src.Next(r.deadline(src.Live()))
		if c := src.Clipped(); c > f.clipped {
			r.tel.clipped.Add(ctx, int64(c-f.clipped))
			f.clipped = c
		}
		if err == nil || errors.Is(err, tail.ErrDeadline) || errors.Is(err, tail.ErrCaughtUp) || errors.Is(err, tail.ErrOverrun) {
			anything = true
			r.sayReadable(ctx, true) // before what is in it
		}
		switch {
		case err == nil:
			r.line(ctx, line, src)
		case errors.Is(err, tail.ErrDeadline), errors.Is(err, tail.ErrCaughtUp):
		case errors.Is(err, tail.ErrOverrun):
			f.overrun = true
		case errors.Is(err, tail.ErrRestarted):
			r.tel.reopened.Add(ctx, 1)
			f.stale, f.catchUp = 0, f.started
			r.newBoot()
		default:
			if !anything { // opened, and not to be read
				r.sayReadable(ctx, false)
			}
			return err
		}
		now := r.clock.sinceBoot()
		if at, ok := r.folder.Next(); ok && src.Live() && now >= at {
			r.folder.Sweep(now)
		}
		r.sayLost(ctx)
	}
}

// deadline is when something is due though no line comes. While old lines are
// read nothing is: they come without waiting, and bring their own times.
func (r *logReceiver) deadline(live bool) time.Time {
	var due time.Time
	if !live {
		return due
	}
	if at, ok := r.folder.Next(); ok {
		due = r.clock.now().Add(max(0, at-r.clock.sinceBoot()))
	}
	if l := &r.follow.lost; l.count > 0 {
		if at := l.said.Add(lostEvery); due.IsZero() || at.Before(due) {
			due = at
		}
	}
	return due
}

// newBoot looks, when a log begins anew, whether that was because of a boot: all
// that follows is news then.
func (r *logReceiver) newBoot() {
	f := &r.follow
	boot := readBootID(r.cfg.BootIDPath)
	if boot == f.boot {
		return
	}
	r.set.Logger.Info("the kernel log is of another boot now", zap.String("boot_id", boot))
	r.folder.Flush()
	f.boot, f.stored, f.known, f.started, f.catchUp = boot, nil, true, false, false
}

// line takes one record.
func (r *logReceiver) line(ctx context.Context, line []byte, src tail.Source) {
	f := &r.follow
	r.tel.lines.Add(1)
	rec, ok := kernel.ParseRecord(line)
	if !ok {
		r.tel.malformed.Add(ctx, 1)
		return
	}
	if f.started && !r.order(&rec, src) {
		return
	}
	if !f.started { // also after a boot that order found
		r.beforeFirst(&rec, src)
	}
	f.overrun = false
	f.started = true
	f.last = position{BootID: f.boot, Seq: rec.Seq, Usec: rec.Usec}
	at := time.Duration(rec.Usec) * time.Microsecond
	if src.Live() {
		r.clock.saw(at)
	}
	f.stamp = r.stampOf(&rec, at, src)
	text := rec.Text
	if bytes.IndexByte(text, '\\') >= 0 {
		f.buf = kernel.Unescape(f.buf[:0], text)
		text = f.buf
	}
	for part := range kernel.Lines(text) {
		if rec.Kernel() || r.cfg.UserRecords {
			r.text(ctx, part)
		} else {
			r.forged(ctx, part, &rec)
		}
	}
}

func (r *logReceiver) text(ctx context.Context, text []byte) {
	var e kernel.Event
	switch r.parser.Parse(text, &e) {
	case kernel.IsEvent:
		r.tel.event(&e)
		r.folder.Add(&e, r.follow.stamp)
	case kernel.Detail:
		r.folder.AddDetail(&e, r.follow.stamp)
	case kernel.Malformed:
		if !r.follow.stamp.Published { // else it was counted before a restart
			r.tel.malformed.Add(ctx, 1)
		}
	}
}

// forged passes over what a process wrote, and tells of it where the driver's words are in it. Nothing is learnt from it either.
func (r *logReceiver) forged(ctx context.Context, text []byte, rec *kernel.Record) {
	var (
		none kernel.Parser
		e    kernel.Event
	)
	if none.Parse(text, &e) != kernel.IsEvent || r.follow.stamp.Published { // what came before a restart was counted and told then
		return
	}
	r.tel.forged.Add(ctx, 1)
	if f := &r.follow; !f.toldForged {
		f.toldForged = true
		r.set.Logger.Warn("a process, not the kernel, wrote a line that looks like the driver's: it is passed over, and so are others like it; find out who may write to the kernel log, or set user_records for a test",
			zap.ByteString("line", text), zap.Uint64("facility", rec.Prio>>3), zap.Uint64("seq", rec.Seq))
	}
}

// order compares a record with the one before it: it reports false for one that
// was taken already, and counts a gap.
func (r *logReceiver) order(rec *kernel.Record, src tail.Source) bool {
	f := &r.follow
	if rec.Seq <= f.last.Seq {
		if src.Device() || f.catchUp && rec.Usec <= f.last.Usec {
			return false
		}
		f.catchUp = false
		switch {
		case rec.Seq == f.last.Seq: // a hand-written log
		case f.stale > 0: // another beginning is behind us
			f.stale--
			r.folder.Forget()
		default:
			r.newBoot()
		}
		return true
	}
	f.catchUp = false
	if n := rec.Seq - f.last.Seq - 1; n > 0 {
		reason := lostGap
		if f.overrun {
			reason = lostOverrun
		}
		r.lose(n, reason, rec)
	}
	return true
}

// beforeFirst counts what was lost before this process read its first record.
func (r *logReceiver) beforeFirst(rec *kernel.Record, src tail.Source) {
	f := &r.follow
	switch {
	case f.stored != nil && rec.Seq > f.stored.Seq+1:
		r.lose(rec.Seq-f.stored.Seq-1, lostGap, rec)
	case f.stored == nil && src.Device() && rec.Seq > 0:
		// The ring has turned over since boot: nobody's fault, but good to know.
		r.tel.lose(rec.Seq, lostBeforeStart)
		r.set.Logger.Info("the kernel overwrote its first records before this start",
			zap.Uint64("records", rec.Seq))
	}
}

// stampOf tells whether a record is news. One that was published or is of another boot is history, and so is one that is too old.
func (r *logReceiver) stampOf(rec *kernel.Record, at time.Duration, src tail.Source) kernel.Stamp {
	f, s := &r.follow, kernel.Stamp{At: at, Seq: rec.Seq}
	age := r.clock.sinceBoot() - at
	switch {
	case f.stale > 0:
		s.EarlierBoot = true
	case f.stored != nil && rec.Seq <= f.stored.Seq && (src.Device() || rec.Usec <= f.stored.Usec):
		s.Published = true
	case src.Live():
		return s
	case age < -tolerance: // from later than now: an earlier boot was longer
		s.EarlierBoot = true
	case f.known || age <= r.cfg.NewsWindow:
		return s
	}
	s.History = true
	return s
}

func (r *logReceiver) lose(n uint64, reason string, rec *kernel.Record) {
	r.tel.lose(n, reason)
	l := &r.follow.lost
	l.count += n
	l.reason, l.at = reason, time.Duration(rec.Usec)*time.Microsecond
}

// sayLost emits what was lost, at most once in lostEvery.
func (r *logReceiver) sayLost(ctx context.Context) {
	l := &r.follow.lost
	if l.count == 0 || r.clock.now().Sub(l.said) < lostEvery {
		return
	}
	r.set.Logger.Warn("kernel log records were lost before they were read",
		zap.Uint64("records", l.count), zap.String("reason", l.reason))
	l.said = r.clock.now()
	r.emitLost(ctx, l)
	l.count = 0
}

// beginnings counts how often the sequence falls in a file that holds the logs
// of several boots.
func beginnings(path string) int {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return 0
	}
	n, have, last := 0, false, uint64(0)
	in := bufio.NewReaderSize(io.LimitReader(file, 1<<30), tail.MaxLine)
	for {
		line, err := in.ReadSlice('\n')
		if rec, ok := kernel.ParseRecord(line); ok {
			if have && rec.Seq < last {
				n++
			}
			have, last = true, rec.Seq
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		if err != nil {
			return n
		}
	}
}
