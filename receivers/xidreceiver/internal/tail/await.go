package tail

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Await calls try until it reports success or ctx ends: at once, whenever path
// or a folder on the way to it appears, changes or changes its mode, and every
// so often besides, for what no watch can see (a sysctl, a mount, a capability).
func Await(ctx context.Context, path string, every time.Duration, try func() bool) {
	for ctx.Err() == nil {
		watch, near := watchNearest(path)
		// Only now: what came before the watch is seen by trying.
		if try() {
			closeWatch(watch)
			return
		}
		waitNear(ctx, watch, near, path, every)
		closeWatch(watch)
	}
}

// watchNearest watches the deepest folder on the way to path that exists. It
// returns nil where there is no watch to be had.
func watchNearest(path string) (*fsnotify.Watcher, string) {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, ""
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() && watch.Add(dir) == nil {
			return watch, dir
		}
		if dir == filepath.Dir(dir) {
			watch.Close()
			return nil, ""
		}
	}
}

func waitNear(ctx context.Context, watch *fsnotify.Watcher, near, path string, every time.Duration) {
	timer := time.NewTimer(every)
	defer timer.Stop()
	var events <-chan fsnotify.Event
	if watch != nil {
		events = watch.Events
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case ev, ok := <-events:
			if !ok {
				return
			}
			if ev.Name == near || ev.Name == path || strings.HasPrefix(path, ev.Name+string(filepath.Separator)) {
				return
			}
		}
	}
}

func closeWatch(w *fsnotify.Watcher) {
	if w != nil {
		w.Close()
	}
}
