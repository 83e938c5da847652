package detectorconnector

import (
	"errors"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/detector/durable"
	"github.com/pitcrew/pitcrew/detector/job"
)

const (
	jobsSave  = 10 * time.Second // what was learnt of ranks
	jobsFound = time.Second      // what is open, after something was said
)

// jobsFile keeps what a gateway knows of running jobs across its restarts. Its counts are those of when it was written.
type jobsFile struct {
	*durable.File
	path    string
	log     *zap.Logger
	written time.Time
	samples int64
	jobs    int64
	found   int64
	spoken  int64
}

// load takes up what an earlier gateway left. Without it ranks are learnt anew, and a finding that lasts may be said again.
func (f *jobsFile) load(now time.Time, e *job.Engine) {
	if f.path == "" {
		return
	}
	err := f.Read(func(b []byte) error {
		err := e.Restore(now, b)
		if err != nil {
			f.log.Warn("what was known of jobs is refused; an older one is tried", zap.String("path", f.path), zap.Error(err))
		}
		return err
	})
	n := e.Counts()
	switch {
	case err == nil:
		f.log.Info("jobs of before are known", zap.String("path", f.path), zap.Int64("jobs", n.Jobs), zap.Int64("ranks", n.Ranks), zap.Int64("open", n.Open))
	case errors.Is(err, fs.ErrNotExist) && n.Jobs == 0:
		f.log.Info("no jobs of before are known", zap.String("path", f.path))
	default:
		f.log.Warn("what was known of jobs could not be read; learning anew", zap.Error(err))
	}
	f.samples, f.jobs, f.found, f.spoken = n.Samples, n.Jobs, n.Findings, n.Spoken
}

// due reports whether what is known has changed so much since it was written that it is to be written again.
func (f *jobsFile) due(now time.Time, n job.Counts) bool {
	switch {
	case n.Findings != f.found, n.Spoken != f.spoken && n.Jobs > 0:
		return true
	case n.Samples != f.samples || n.Jobs != f.jobs:
		return now.Sub(f.written) >= jobsSave || now.Before(f.written)
	}
	return false
}

// newJobsFile saves what is known of jobs now and then, soon after something was said, and at the end.
func (j *jobs) newJobsFile(path string) *durable.File {
	var now time.Time
	var n job.Counts
	return durable.NewFile(durable.Options{
		Path: path, Every: jobsFound,
		Content: func(last bool) ([]byte, error) {
			f := &j.running
			if last {
				f.written = time.Time{}
			}
			now = j.now()
			j.mu.Lock()
			defer j.mu.Unlock()
			if n = j.engine.Counts(); !f.due(now, n) {
				return nil, nil
			}
			return j.engine.Snapshot(now), nil
		},
		Written: func() {
			f := &j.running
			f.written, f.samples, f.jobs, f.found = now, n.Samples, n.Jobs, n.Findings
		},
		Failed: func(err error) {
			j.log.Warn("what is known of jobs could not be saved; a new gateway would learn it again", zap.String("path", path), zap.Error(err))
		},
	})
}
