package incident

import (
	"context"
	"sync"
	"time"
)

const (
	rushFor  = 500 * time.Millisecond // after a cordon in which another one is likely to follow
	tellWait = 5 * time.Second        // the longest that words for people wait for a rush to end
	tellLook = 100 * time.Millisecond
)

// rush knows which incidents cordon nodes now. In a storm the API server is the bottleneck, and each cordon is followed by a condition and an
// Event for people. Those wait until the cordons of other incidents are done.
type rush struct {
	mu sync.Mutex
	at map[string]time.Time // by incident: its last cordon
}

func (r *rush) cordons(incident string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, at := range r.at {
		if now.Sub(at) >= rushFor {
			delete(r.at, id)
		}
	}
	if r.at == nil {
		r.at = map[string]time.Time{}
	}
	r.at[incident] = now
}

// others reports whether an incident other than this one cordons.
func (r *rush) others(incident string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, at := range r.at {
		if id != incident && now.Sub(at) < rushFor {
			return true
		}
	}
	return false
}

// calm waits until no other incident cordons, at most tellWait. It returns false if ctx ended.
func (d *driver) calm(ctx context.Context) bool {
	id := d.now.Load().ID
	for end := d.e.Now().Add(tellWait); d.e.rush.others(id, d.e.Now()) && d.e.Now().Before(end); {
		if !pause(ctx, tellLook) {
			return false
		}
	}
	return true
}
