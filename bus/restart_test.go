package bus

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// soon is less than what a lost consumer's heartbeat takes to be missed, 10 s.
const soon = 5 * time.Second

// mortal is a server that can be stopped and started again on its port.
type mortal struct {
	*Server
	t    *testing.T
	dir  string
	port int
}

func restartable(t *testing.T) *mortal {
	s := &mortal{t: t, dir: t.TempDir()}
	s.Server = startServer(t, s.dir, -1)
	_, port, err := net.SplitHostPort(s.URL()[len("nats://"):])
	if err == nil {
		s.port, err = strconv.Atoi(port)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop() })
	return s
}

// again ends the server and starts it in the same folder, or in another one.
func (s *mortal) again(dir string) {
	s.t.Helper()
	s.Stop()
	s.Server = startServer(s.t, dir, s.port)
}

// puts retries what a server that has just started may not take yet.
func puts[T any](t *testing.T, k Bucket[T], key string, v T) time.Time {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := k.Put(t.Context(), key, v, 0); err == nil {
			return time.Now()
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func follow[T any](t *testing.T, k Bucket[T]) (changes chan Change[T]) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes, current, ended := make(chan Change[T], 1000), make(chan struct{}), make(chan error, 1)
	go func() { ended <- k.Watch(ctx, func() { close(current) }, func(c Change[T]) { changes <- c }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	select {
	case <-current:
	case <-time.After(10 * time.Second):
		t.Fatal("the present values did not come")
	}
	return changes
}

func next[T any](t *testing.T, changes chan T, within time.Duration) (c T) {
	t.Helper()
	select {
	case c = <-changes:
	case <-time.After(within):
		t.Fatalf("nothing came within %v", within)
	}
	return c
}

func TestAWatchGoesOnWhereItStoodAtOnceAfterTheServersRestart(t *testing.T) {
	s := restartable(t)
	reader, writer := connect(t, s.URL()), connect(t, s.URL())
	if err := reader.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	k := NewBucket[string](writer, ControlBucket)
	for n := range 3 {
		puts(t, k, fmt.Sprintf("k%d", n), "before")
	}
	changes := follow(t, NewBucket[string](reader, ControlBucket))
	for range 3 {
		next(t, changes, soon)
	}
	for round := range 2 {
		s.again(s.dir)
		at := puts(t, k, fmt.Sprintf("after %d", round), "after")
		c := next(t, changes, soon)
		t.Logf("round %d: %v after it was written", round, time.Since(at).Round(time.Millisecond))
		if c.Key != fmt.Sprintf("after %d", round) || c.Value != "after" {
			t.Fatalf("%+v: what was known is said again, or something is missing", c)
		}
		if err := k.Delete(t.Context(), c.Key, c.Rev); err != nil {
			t.Fatal(err)
		}
		if c := next(t, changes, soon); !c.Deleted {
			t.Fatalf("%+v", c)
		}
	}
	select {
	case c := <-changes:
		t.Errorf("%+v was said again", c)
	case <-time.After(200 * time.Millisecond):
	}
}

func TestAWatchSeesWhatWasWrittenWhileItWasCutOff(t *testing.T) {
	s := restartable(t)
	reader := connect(t, s.URL())
	if err := reader.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	puts(t, NewBucket[string](reader, ControlBucket), "k", "before")
	changes := follow(t, NewBucket[string](reader, ControlBucket))
	next(t, changes, soon)
	s.Stop()
	other := startServer(t, s.dir, -1) // another address: only the writer finds it
	writer := connect(t, other.URL())
	if err := writer.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		puts(t, NewBucket[string](writer, ControlBucket), fmt.Sprintf("n%d", n), "meanwhile")
	}
	writer.Close()
	other.Stop()
	s.Server = startServer(t, s.dir, s.port)
	for n := range 3 {
		if c := next(t, changes, soon); c.Key != fmt.Sprintf("n%d", n) {
			t.Errorf("%+v", c)
		}
	}
}

func TestAWatchBeginsAnewOnAServerWithAnEmptyFolder(t *testing.T) {
	s := restartable(t)
	reader, writer := connect(t, s.URL()), connect(t, s.URL())
	if err := reader.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	k := NewBucket[string](writer, ControlBucket)
	for n := range 5 {
		puts(t, k, fmt.Sprintf("k%d", n), "old")
	}
	changes := follow(t, NewBucket[string](reader, ControlBucket))
	for range 5 {
		next(t, changes, soon)
	}
	empty, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	s.again(empty)
	puts(t, k, "k0", "new") // at revision 1, which the reader had long passed
	if c := next(t, changes, soon); c.Key != "k0" || c.Value != "new" || c.Rev != 1 {
		t.Errorf("%+v", c)
	}
}

func TestConditionsAndEventsGoOnAtOnceAfterTheServersRestart(t *testing.T) {
	s := restartable(t)
	b := connect(t, s.URL())
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	conditions, events, read, ended := make(chan Condition, 10), make(chan Delivery, 10), make(chan struct{}), make(chan error, 2)
	go func() { ended <- b.Conditions(ctx, read, func(c Condition) { conditions <- c }) }()
	go func() {
		ended <- b.Events(ctx, "test", func(_ context.Context, d Delivery) error { events <- d; return nil }, func(string, error) {})
	}()
	defer func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	<-read
	s.again(s.dir)
	p, err := b.NewPublisher("", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closePublisher(t, p)
	e := fault(1)
	if err := p.Publish(e); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := b.SetCondition(t.Context(), Condition{Node: "node.1", Key: "xid/79 node", Active: true, Event: &e})
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	at := time.Now()
	if c := next(t, conditions, soon); c.Key != "xid/79 node" {
		t.Errorf("%+v", c)
	}
	t.Logf("the condition after %v", time.Since(at).Round(time.Millisecond))
	if d := next(t, events, soon); d.Event.ID != e.ID {
		t.Errorf("%+v", d)
	}
	t.Logf("the event after %v", time.Since(at).Round(time.Millisecond))
}

// An event is being dealt with when the server dies: neither the acknowledgement nor the word that it failed may hold up the next for
// as long as the server waits for them.
func TestAnEventThatIsDealtWithWhileTheServerRestartsHoldsUpNoOther(t *testing.T) {
	for name, fails := range map[string]bool{"dealt with": false, "failed": true} {
		t.Run(name, func(t *testing.T) {
			s := restartable(t)
			b := connect(t, s.URL())
			if err := b.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			p, err := b.NewPublisher("", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer closePublisher(t, p)
			for n := range 2 {
				if err := p.Publish(fault(n)); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			gone, up, events, ended := make(chan struct{}), make(chan struct{}), make(chan Delivery, 10), make(chan error, 1)
			go func() {
				first := true
				ended <- b.Events(ctx, "test", func(_ context.Context, d Delivery) error {
					if d.Event.ID == fault(0).ID && first {
						close(gone)
						first = false
						for b.Connected() {
							time.Sleep(time.Millisecond)
						}
						if fails {
							return context.DeadlineExceeded
						}
						<-up
					}
					events <- d
					return nil
				}, func(string, error) {})
			}()
			defer func() {
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			<-gone
			s.Stop()
			time.Sleep(100 * time.Millisecond)
			if !fails {
				close(up) // dealt with, and nobody to tell
				time.Sleep(100 * time.Millisecond)
			}
			s.Server = startServer(t, s.dir, s.port)
			for n := range 2 {
				if d := next(t, events, 2*soon); d.Event.ID != fault(n).ID {
					t.Errorf("event %d: %s", n, d.Event.ID)
				}
			}
		})
	}
}

// The handle of a bucket is kept for one connection, so that an operation is one question to the server and not two.
func TestABucketIsLookedUpOnceForEachConnection(t *testing.T) {
	s := restartable(t)
	b := connect(t, s.URL())
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	lookups := func() *atomic.Int64 {
		watch := connect(t, s.URL())
		if err := watch.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		var n atomic.Int64
		if _, err := watch.nc.Subscribe("$JS.API.STREAM.INFO."+bucketStream+ControlBucket, func(*nats.Msg) { n.Add(1) }); err != nil {
			t.Fatal(err)
		}
		if err := watch.nc.Flush(); err != nil {
			t.Fatal(err)
		}
		return &n
	}
	k := NewBucket[string](b, ControlBucket)
	counted := lookups()
	for n := range 10 {
		key := fmt.Sprint("k", n)
		puts(t, k, key, "v")
		if _, _, err := NewBucket[string](b, ControlBucket).Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if n := counted.Load(); n > 1 {
		t.Errorf("the server was asked %d times where the bucket is", n)
	}
	s.again(t.TempDir()) // another server: it has no bucket
	if puts(t, k, "k0", "v"); !b.Connected() {
		t.Error("not connected")
	}
}
