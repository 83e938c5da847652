package incident

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// rough is an API server that has a bad hour: what a call meets follows from its name and number. A gang is read from watches.
type rough struct {
	*world
	mu    sync.Mutex
	meets func(call string, nth int) (before, after error) // after: it took effect, and the answer was lost
	calls map[string]int
}

func (r *rough) meet(call string, do func() error) error {
	r.mu.Lock()
	r.calls[call]++
	nth := r.calls[call]
	r.mu.Unlock()
	before, after := r.meets(call, nth)
	if before != nil {
		return fmt.Errorf("%s: %w", call, before)
	}
	if err := do(); err != nil || after == nil {
		return err
	}
	return fmt.Errorf("%s: %w", call, after)
}

func (r *rough) GangsAt(ctx context.Context, t event.Target) (g []cluster.Gang, err error) {
	err = r.meet("GangsAt", func() (err error) { g, err = r.world.GangsAt(ctx, t); return err })
	return g, err
}

func (r *rough) Cordon(ctx context.Context, node, incident string) (c cluster.Cordoned, err error) {
	err = r.meet("Cordon", func() (err error) { c, err = r.world.Cordon(ctx, node, incident); return err })
	return c, err
}

func (r *rough) SetCondition(ctx context.Context, node string, healthy bool, reason, message string) error {
	return r.meet("SetCondition", func() error { return r.world.SetCondition(ctx, node, healthy, reason, message) })
}

func (r *rough) Event(ctx context.Context, about cluster.Ref, level, reason, message string) error {
	return r.meet("Event", func() error { return r.world.Event(ctx, about, level, reason, message) })
}

func (r *rough) Reserve(ctx context.Context, v cluster.Reservation) error {
	return r.meet("Reserve", func() error { return r.world.Reserve(ctx, v) })
}

func (r *rough) WaitReservationSeen(ctx context.Context, v cluster.Reservation) error {
	return r.meet("WaitReservationSeen", func() error { return r.world.WaitReservationSeen(ctx, v) })
}

func (r *rough) Release(ctx context.Context, incident string) error {
	return r.meet("Release", func() error { return r.world.Release(ctx, incident) })
}

func (r *rough) MayReplace(ctx context.Context, pods []cluster.Member, o cluster.RecreateOptions) error {
	return r.meet("MayReplace", func() error { return r.world.MayReplace(ctx, pods, o) })
}

func (r *rough) MayRecreate(ctx context.Context, g cluster.Gang, o cluster.RecreateOptions) error {
	return r.meet("MayRecreate", func() error { return r.world.MayRecreate(ctx, g, o) })
}

func (r *rough) ReplacePod(ctx context.Context, m cluster.Member, o cluster.ReplaceOptions) (c cluster.Outcome, err error) {
	err = r.meet("ReplacePod", func() (err error) { c, err = r.world.ReplacePod(ctx, m, o); return err })
	return c, err
}

func (r *rough) RecreateGang(ctx context.Context, g cluster.Gang, o cluster.RecreateOptions) (c cluster.Recreation, err error) {
	err = r.meet("RecreateGang", func() (err error) { c, err = r.world.RecreateGang(ctx, g, o); return err })
	return c, err
}

func (r *rough) ReadBack(ctx context.Context, m cluster.Member, reserved string, equivalent func(string) bool, o cluster.ReplaceOptions) (l cluster.Landing, err error) {
	err = r.meet("ReadBack", func() (err error) { l, err = r.world.ReadBack(ctx, m, reserved, equivalent, o); return err })
	return l, err
}

// badHours are what every call meets.
var badHours = map[string]func(call string, nth int) (before, after error){
	"each call takes 5 s": func(string, int) (error, error) { time.Sleep(5 * time.Second); return nil, nil },
	"too many requests, five times": func(_ string, nth int) (error, error) {
		if nth <= 5 {
			return cluster.ErrRetry, nil
		}
		return nil, nil
	},
	"conflicts, every second call": func(_ string, nth int) (error, error) {
		if nth%2 == 1 {
			return cluster.ErrConflict, nil
		}
		return nil, nil
	},
	"each first answer is lost": func(_ string, nth int) (error, error) {
		if nth == 1 {
			return nil, cluster.ErrRetry
		}
		return nil, nil
	},
	"every third answer is lost after 4 s": func(_ string, nth int) (error, error) {
		if nth%3 == 0 {
			time.Sleep(4 * time.Second)
			return nil, cluster.ErrRetry
		}
		return nil, nil
	},
}

func TestAnAPIServerInABadHourDelaysAnIncidentAndNothingIsDoneTwice(t *testing.T) {
	for hour, meets := range badHours {
		for way, set := range map[string]func(*stage){
			"launcher": func(*stage) {},
			"recreate": func(s *stage) { s.gangs["job-train"].Launcher = false },
			"a stray":  func(s *stage) { s.slip(1, true) },
		} {
			t.Run(hour+"/"+way, func(t *testing.T) {
				on(t, func(s *stage) {
					set(s)
					s.e.Cluster = &rough{world: s.world, meets: meets, calls: map[string]int{}}
					ev := at("gpu/row-remap", "n1")
					for s.e.Handle(t.Context(), ev, Origin{}) != nil { // the bus delivers it again
						time.Sleep(time.Second)
					}
					i := s.closes(15*time.Minute, Recovered)
					s.wantOnce()
					if i.Restarts != 1 || way == "launcher" && i.Attempt != 1 || s.count("cordon n1") != 1 {
						t.Errorf("%d restarts, attempt %d, did %q", i.Restarts, i.Attempt, s.did)
					}
				})
			})
		}
	}
}
