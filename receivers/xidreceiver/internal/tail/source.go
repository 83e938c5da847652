package tail

import "time"

// Source is an open log.
type Source interface {
	// Next returns the next line without its newline, good until the next call.
	// It blocks until there is one; a zero deadline never passes. An error that
	// is none of this package's means that the source is of no more use.
	Next(deadline time.Time) ([]byte, error)
	// Live reports whether ErrCaughtUp has come, so that lines now are as they happen.
	Live() bool
	// Device reports whether sequence numbers never fall, as in the kernel itself.
	Device() bool
	// Clipped is how many lines were cut at MaxLine.
	Clipped() uint64
	Close() error
}
