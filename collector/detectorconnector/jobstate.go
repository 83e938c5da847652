package detectorconnector

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
	err := durable.Read(f.path, func(b []byte) error {
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

// keepJobs saves what is known of jobs now and then, soon after something was said, and at the end.
func (j *jobs) keepJobs(ctx context.Context) {
	t := time.NewTicker(jobsFound)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			j.running.written = time.Time{}
			j.saveJobs()
			return
		case <-t.C:
			j.saveJobs()
		}
	}
}

// saveJobs saves what is known of jobs where that is due.
func (j *jobs) saveJobs() {
	f, now := &j.running, j.now()
	j.mu.Lock()
	n := j.engine.Counts()
	if !f.due(now, n) {
		j.mu.Unlock()
		return
	}
	b := j.engine.Snapshot(now)
	j.mu.Unlock()
	err := os.MkdirAll(filepath.Dir(f.path), 0o700)
	if err == nil {
		err = durable.Write(f.path, b)
	}
	if err != nil {
		j.log.Warn("what is known of jobs could not be saved; a new gateway would learn anew", zap.String("path", f.path), zap.Error(err))
		return
	}
	f.written, f.samples, f.jobs, f.found = now, n.Samples, n.Jobs, n.Findings
}
