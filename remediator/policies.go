package remediator

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/pitcrew/pitcrew/remediator/policy"
)

// policies are the policy files in force. A change that does not load leaves the old ones in force and says why.
type policies struct {
	paths []string
	log   *slog.Logger
	now   atomic.Pointer[policy.Book]
	tell  func() // called after a change is in force
}

func newPolicies(paths []string, log *slog.Logger) (*policies, error) {
	p := &policies{paths: paths, log: log, tell: func() {}}
	return p, p.load()
}

func (p *policies) load() error {
	ps, err := policy.Load(p.paths...)
	if err != nil {
		return err
	}
	old := map[string]string{}
	if was := p.now.Swap(policy.NewBook(ps)); was != nil {
		for _, x := range was.Policies() {
			old[x.Metadata.Name] = x.Hash()
		}
	}
	for _, x := range ps {
		if old[x.Metadata.Name] == x.Hash() {
			continue
		}
		p.log.Info("policy in force", "policy", x.Metadata.Name, "mode", x.Spec.Mode, "order", x.Spec.Order, "hash", x.Hash())
	}
	return nil
}

func (p *policies) current() *policy.Book { return p.now.Load() }

// fixed are policies that do not change.
type fixed struct{ *policy.Book }

func (f fixed) current() *policy.Book { return f.Book }

// settle is how long files must be quiet before they are read: editors and ConfigMap mounts write in several strokes.
const settle = 200 * time.Millisecond

// watch reloads when a file or folder changes, until ctx ends.
func (p *policies) watch(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	for _, path := range p.paths {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			path = filepath.Dir(path) // the file itself is replaced, not written
		}
		if err := w.Add(path); err != nil {
			return err
		}
	}
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			quiet.Reset(settle)
		case err := <-w.Errors:
			p.log.Warn("watch policies", "error", err)
		case <-quiet.C:
			if err := p.load(); err != nil {
				p.log.Error("policies not reloaded; the old ones stay in force", "error", err)
			} else {
				p.tell()
			}
		}
	}
}
