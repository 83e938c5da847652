package storm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// profiled are the profiles taken of the leader: what it spends processor time on, and what it allocates.
var profiled = []struct{ file, path string }{
	{"cpu", "profile?seconds=%d"},
	{"allocs", "allocs?seconds=%d"},
}

// profileMore is how long a profile goes on when the last node has failed: most incidents have ended by then.
const profileMore = 14 * time.Second

// profile begins to take the profiles of the leader, if they were asked for. The channel gives the error when all are written.
func (b *bench) profile(ctx context.Context, s *scenario, tested *remediators) <-chan error {
	done := make(chan error, 1)
	if b.o.Profiles == "" {
		done <- nil
		return done
	}
	go func() {
		leader, err := tested.leader(ctx)
		if err == nil {
			err = tested.profile(ctx, leader, b.o.Profiles, s.name, s.over(b.o)+profileMore)
		}
		done <- err
	}()
	return done
}

// profile takes the profiles of a process for a time, and writes CASE.KIND.pprof of each into a directory. It returns when all are written.
func (r *remediators) profile(ctx context.Context, name, dir, run string, lasts time.Duration) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return each(ctx, len(profiled), func(ctx context.Context, i int) error {
		p := profiled[i]
		url := fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/"+p.path, r.ports[name], int(lasts.Seconds()))
		body, err := get(ctx, url, lasts+10*time.Second)
		if err != nil {
			return fmt.Errorf("profile of %s: %w", name, err)
		}
		return writeFile(filepath.Join(dir, run+"."+p.file+".pprof"), body)
	})
}
