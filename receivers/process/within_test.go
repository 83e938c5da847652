package process

import (
	"errors"
	"sync"
	"testing"
	"time"
)

func TestALookThatHangsBlocksNobodyAndTakesNoRoomFromOthers(t *testing.T) {
	w := &Within{Deadline: 10 * time.Millisecond, PerOwner: 2, All: 3}
	dead := make(chan struct{})
	hang := func() { <-dead }
	for i, want := range []error{ErrStuck, ErrStuck, ErrTooManyStuck} {
		if err := w.Do("pod-a", hang); !errors.Is(err, want) {
			t.Errorf("look %d: %v, want %v", i, err, want)
		}
	}
	ran := false
	if err := w.Do("pod-b", func() { ran = true }); err != nil || !ran {
		t.Errorf("another pod: %v", err)
	}
	if err := w.Do("pod-b", hang); !errors.Is(err, ErrStuck) {
		t.Errorf("another pod's hang: %v", err)
	}
	if err := w.Do("pod-c", func() {}); !errors.Is(err, ErrTooManyStuck) {
		t.Errorf("beyond the bound of all: %v", err)
	}
	close(dead)
	for end := time.Now().Add(10 * time.Second); w.Stuck() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if err := w.Do("pod-a", func() {}); err != nil || len(w.owner) != 0 {
		t.Errorf("after the mount is back: %v, %v", err, w.owner)
	}
}

func TestLooksThatEndAtTheirDeadlineAreCountedOnce(t *testing.T) {
	w := &Within{Deadline: time.Millisecond, PerOwner: 1000, All: 1000}
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() { _ = w.Do("pod", func() { time.Sleep(time.Millisecond) }) })
	}
	all.Wait()
	for end := time.Now().Add(10 * time.Second); w.Stuck() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if w.Stuck() != 0 {
		t.Errorf("%d looks are said to be stuck", w.Stuck())
	}
}
