package durable

import (
	"sync"
	"time"
)

// File keeps a state in a file for as long as a process runs. It is never on the path of what changes the state: Changed does not wait.
// Without a path it does nothing.
type File struct {
	o     Options
	dirty chan struct{}
	done  chan struct{}
	ended sync.WaitGroup
	one   sync.Mutex // one write at a time
}

// retryAfter a write that failed it is tried again, also if nothing changes: what is on disk is older than it seems.
const retryAfter = 10 * time.Second

// Options of a File.
type Options struct {
	Path  string
	After time.Duration // from a change to its write, so that many changes are one write
	Every time.Duration // writes without a change; 0: none
	// Content returns what to write; nil if nothing is due. last is true for the write at the end. It is called by one goroutine at a time.
	Content func(last bool) ([]byte, error)
	Written func()      // the content is on disk; may be nil
	Failed  func(error) // a write failed; it is tried again
}

// NewFile makes a File that has not started.
func NewFile(o Options) *File {
	return &File{o: o, dirty: make(chan struct{}, 1), done: make(chan struct{})}
}

// Read gives take the newest snapshot, and the older one if take refuses it; fs.ErrNotExist if there is none. Without a path there is nothing
// to take, and no error.
func (f *File) Read(take func([]byte) error) error {
	if f.o.Path == "" {
		return nil
	}
	return Read(f.o.Path, take)
}

// Start begins to write.
func (f *File) Start() {
	if f.o.Path != "" {
		f.ended.Go(f.run)
	}
}

// Stop writes once more and ends the writing. It is called once.
func (f *File) Stop() {
	close(f.done)
	f.ended.Wait()
}

// Changed has the state written soon.
func (f *File) Changed() {
	select {
	case f.dirty <- struct{}{}:
	default:
	}
}

// Save writes now, if something is due.
func (f *File) Save() { f.save(false) }

func (f *File) run() {
	var tick <-chan time.Time
	if f.o.Every > 0 {
		t := time.NewTicker(f.o.Every)
		defer t.Stop()
		tick = t.C
	}
	var again <-chan time.Time
	for {
		select {
		case <-f.done:
			f.save(true)
			return
		case <-tick:
		case <-again:
		case <-f.dirty:
			select {
			case <-f.done: // the last write is next
			case <-time.After(f.o.After):
			}
		}
		again = nil
		if !f.save(false) {
			again = time.After(retryAfter)
		}
	}
}

// save reports whether nothing is left to write.
func (f *File) save(last bool) bool {
	if f.o.Path == "" {
		return true
	}
	f.one.Lock()
	defer f.one.Unlock()
	b, err := f.o.Content(last)
	if err == nil && b != nil {
		if err = Write(f.o.Path, b); err == nil && f.o.Written != nil {
			f.o.Written()
		}
	}
	if err != nil {
		f.o.Failed(err)
	}
	return err == nil
}
