package xidreceiver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/receivers/xidreceiver/internal/tail"
	"github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"
	"github.com/pitcrew/pitcrew/semconv"
)

// fabricLog follows the fabric manager's log beside the kernel log. It shares nothing that changes with the reader of the kernel log: neither
// waits for the other. A log that does not exist is not an error, and is read when it appears.
//
// The log has no sequence numbers, and its times have no zone. So a line is news in two cases only: it was appended while the log was
// followed, or it is later, by the log's own times, than all that was read in this boot.
type fabricLog struct {
	out    *logReceiver // makes and sends the records; its own, of which nothing else is used
	path   string
	folder *kernel.Folder
	done   sync.WaitGroup
	lines  uint64
	mark   fabricMark
	known  bool   // the log was read to its end once in this boot: what is later than the mark is news
	said   string // the last trouble that was logged
}

// fabricMark is how far the log was read.
type fabricMark struct {
	BootID string `json:"boot_id"`
	// Last is the latest time on an error's line, and Seen the hashes of the lines of that second.
	Last time.Time `json:"last"`
	Seen []uint64  `json:"seen,omitempty"`
}

const (
	fabricKey = "fabric_position"
	// maxSeen bounds the lines of one second that are remembered. Those beyond it may be news twice.
	maxSeen = 64
	// plausibleAge is how old a line that is news can be by its own time.
	plausibleAge = 10 * time.Minute
)

// newFabric returns the reader of the fabric manager's log, or nil if no path is configured.
func (r *logReceiver) newFabric(ctx context.Context) *fabricLog {
	if r.cfg.FabricPath == "" {
		return nil
	}
	own := &logReceiver{set: r.set, cfg: r.cfg, next: r.next, tel: r.tel, open: r.open, clock: r.clock, store: r.store}
	own.follow.boot = r.follow.boot
	f := &fabricLog{out: own, path: r.cfg.FabricPath, mark: fabricMark{BootID: own.follow.boot}}
	f.restore(ctx)
	return f
}

func (f *fabricLog) start(ctx context.Context) {
	f.folder = kernel.NewFolder(func(rep *kernel.Report) { f.emit(ctx, rep) })
	f.done.Go(func() { f.run(ctx) })
}

// stop waits for the reader, whose context has ended, and hands on what was counted.
func (f *fabricLog) stop() {
	f.done.Wait()
	f.folder.Flush()
}

// restore takes over what an earlier process read in this boot.
func (f *fabricLog) restore(ctx context.Context) {
	data, err := f.out.store.Get(ctx, fabricKey)
	var stored fabricMark
	if err == nil && data != nil {
		err = json.Unmarshal(data, &stored)
	}
	if err != nil {
		f.out.set.Logger.Warn("the stored position in the fabric manager's log cannot be read; what the log has now is not reported", zap.Error(err))
		return
	}
	if f.mark.BootID != "" && stored.BootID == f.mark.BootID {
		f.mark, f.known = stored, true
	}
}

func (f *fabricLog) save(ctx context.Context) {
	data, err := json.Marshal(f.mark)
	if err == nil {
		err = f.out.store.Set(context.WithoutCancel(ctx), fabricKey, data)
	}
	if err != nil {
		f.out.set.Logger.Warn("the position in the fabric manager's log could not be stored; a restart may repeat or miss errors", zap.Error(err))
	}
}

// run opens the log, follows it, and opens it again whenever it fails.
func (f *fabricLog) run(ctx context.Context) {
	for ctx.Err() == nil {
		var src tail.Source
		tail.Await(ctx, f.path, retryUnwatched, func() bool {
			s, err := f.out.open(ctx, f.path)
			if err != nil {
				f.trouble(err)
				return false
			}
			src = s
			return true
		})
		if src == nil {
			return
		}
		f.said = ""
		f.out.set.Logger.Info("the fabric manager's log is read", zap.String("path", f.path))
		opened := f.out.clock.now()
		err := f.read(ctx, src)
		src.Close()
		if ctx.Err() != nil {
			return
		}
		f.trouble(err)
		pause(ctx, shortLived-f.out.clock.now().Sub(opened))
	}
}

// trouble logs an error once. A node without a fabric manager has no log.
func (f *fabricLog) trouble(err error) {
	if errors.Is(err, fs.ErrNotExist) || f.said == err.Error() {
		return
	}
	f.said = err.Error()
	f.out.set.Logger.Warn("the fabric manager's log cannot be read; it is opened again automatically", zap.String("path", f.path), zap.Error(err))
}

// read takes lines until the source fails or ctx ends.
func (f *fabricLog) read(ctx context.Context, src tail.Source) error {
	appended, clipped := false, uint64(0)
	for {
		line, err := src.Next(f.deadline(src.Live()))
		if c := src.Clipped(); c > clipped {
			f.out.tel.clipped.Add(ctx, int64(c-clipped))
			clipped = c
		}
		switch {
		case err == nil:
			appended = f.line(ctx, line, appended) || appended
		case errors.Is(err, tail.ErrCaughtUp):
			appended, f.known = true, true
			f.save(ctx)
		case errors.Is(err, tail.ErrRestarted): // rotated, or replaced by a copy that repeats old lines
			appended = false
		case !errors.Is(err, tail.ErrDeadline):
			return fmt.Errorf("follow the fabric manager's log: %w", err)
		}
		now := f.out.clock.sinceBoot()
		if at, ok := f.folder.Next(); ok && src.Live() && now >= at {
			f.folder.Sweep(now)
		}
	}
}

// deadline is when something is due though no line comes.
func (f *fabricLog) deadline(live bool) time.Time {
	if at, ok := f.folder.Next(); ok && live {
		return f.out.clock.now().Add(max(0, at-f.out.clock.sinceBoot()))
	}
	return time.Time{}
}

// line takes one line and reports whether it is an error that is news. appended marks a line that was written while the log was followed.
func (f *fabricLog) line(ctx context.Context, line []byte, appended bool) bool {
	var e kernel.Event
	written, result := kernel.ParseFabric(line, &e)
	switch {
	case result == kernel.Malformed:
		f.out.tel.malformed.Add(ctx, 1)
		return false
	case result != kernel.IsEvent:
		return false
	}
	later := f.pass(written, line)
	if !appended && !(f.known && later) {
		return false
	}
	f.lines++
	f.folder.Add(&e, kernel.Stamp{At: f.at(written), Seq: f.lines})
	return true
}

// pass moves the mark past a line and reports whether the line was beyond it.
func (f *fabricLog) pass(written time.Time, line []byte) bool {
	m := &f.mark
	h := fnv.New64a()
	h.Write(line)
	switch {
	case written.After(m.Last):
		m.Last, m.Seen = written, append(m.Seen[:0], h.Sum64())
		return true
	case written.Equal(m.Last) && !slices.Contains(m.Seen, h.Sum64()):
		if len(m.Seen) < maxSeen {
			m.Seen = append(m.Seen, h.Sum64())
		}
		return true
	}
	return false
}

// at is when a line was written, on the clock of the records. Its own time counts where that is plausible: the log's zone may not be this
// process's, and zones differ by 15 minutes at least.
func (f *fabricLog) at(written time.Time) time.Duration {
	now := f.out.clock.sinceBoot()
	local := time.Date(written.Year(), written.Month(), written.Day(), written.Hour(), written.Minute(), written.Second(), 0, time.Local)
	if age := f.out.clock.now().Sub(local); age > 0 && age <= plausibleAge && age < now {
		return now - age
	}
	return now
}

// emit hands a report to the pipeline, and then keeps the position.
func (f *fabricLog) emit(ctx context.Context, rep *kernel.Report) {
	logs, rec := f.out.newRecord(eventPrefix+string(rep.Event.Kind), rep.Stamp.At)
	rec.Body().SetStr(rep.Line)
	f.out.attributes(rec.Attributes(), rep)
	rec.Attributes().PutStr(semconv.LogFilePath, f.path)
	f.out.consume(ctx, logs)
	f.save(ctx)
}
