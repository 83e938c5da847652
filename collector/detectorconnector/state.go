package detectorconnector

import (
	"encoding/json"
	"errors"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/detector/durable"
	"github.com/pitcrew/pitcrew/detector/finding"
)

// coalesce bounds how often the state file is written; it is never on the path of a finding.
const coalesce = 50 * time.Millisecond

// newStateFile keeps the open findings on disk, so that a fault which lasts across a new agent stays one finding.
func newStateFile(path string, snapshot func() map[string][]finding.Open, log *zap.Logger) *durable.File {
	return durable.NewFile(durable.Options{
		Path: path, After: coalesce,
		Content: func(bool) ([]byte, error) { return json.Marshal(snapshot()) },
		Failed: func(err error) {
			log.Warn("open findings could not be saved; after a restart a lasting fault may be reported again", zap.Error(err))
		},
	})
}

// loadState reads what an earlier agent left open, by node. If the newest snapshot is damaged, the older one does not serve: a finding in it may
// have ended since, and its condition would be set again.
func loadState(f *durable.File) (open map[string][]finding.Open, err error) {
	var damaged error
	err = f.Read(func(b []byte) error {
		if damaged == nil {
			damaged = json.Unmarshal(b, &open)
		}
		return damaged
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return open, err
}
