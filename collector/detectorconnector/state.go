package detectorconnector

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/detector/finding"
)

// coalesce bounds how often the state file is written; it is never on the path of a finding.
const coalesce = 50 * time.Millisecond

// stateFile keeps the open findings on disk, so that a fault which lasts across a new agent stays one finding.
type stateFile struct {
	path     string
	snapshot func() map[string][]finding.Open
	log      *zap.Logger
	dirty    chan struct{}
	done     chan struct{}
	ended    sync.WaitGroup
}

func newStateFile(path string, snapshot func() map[string][]finding.Open, log *zap.Logger) *stateFile {
	return &stateFile{path: path, snapshot: snapshot, log: log, dirty: make(chan struct{}, 1), done: make(chan struct{})}
}

func (s *stateFile) load() (map[string][]finding.Open, error) {
	if s.path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var open map[string][]finding.Open
	if err := json.Unmarshal(raw, &open); err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	return open, nil
}

func (s *stateFile) start() {
	if s.path == "" {
		return
	}
	s.ended.Go(func() {
		for {
			select {
			case <-s.done:
				s.save()
				return
			case <-s.dirty:
			}
			select {
			case <-s.done:
			case <-time.After(coalesce):
			}
			s.save()
		}
	})
}

func (s *stateFile) stop() {
	close(s.done)
	s.ended.Wait()
}

func (s *stateFile) changed() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

func (s *stateFile) save() {
	raw, err := json.Marshal(s.snapshot())
	if err == nil {
		err = os.MkdirAll(filepath.Dir(s.path), 0o700)
	}
	if err == nil {
		if err = os.WriteFile(s.path+".tmp", raw, 0o600); err == nil {
			err = os.Rename(s.path+".tmp", s.path)
		}
	}
	if err != nil {
		s.log.Warn("open findings could not be saved; after a restart a lasting fault may be said again", zap.Error(err))
	}
}
