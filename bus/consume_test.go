package bus

import (
	"context"
	"errors"
	"testing"
	"time"
)

// publish stores faults, in order.
func publish(t *testing.T, b *Bus, faults ...int) {
	t.Helper()
	p, err := b.NewPublisher("", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range faults {
		if err := p.Publish(fault(n)); err != nil {
			t.Fatal(err)
		}
	}
	closePublisher(t, p)
}

func TestAnEventNotDealtWithComesAgain(t *testing.T) {
	b := testBus(t)
	publish(t, b, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var again []bool
	_ = b.Events(ctx, "r", func(_ context.Context, d Delivery) error {
		if again = append(again, d.Again); len(again) == 1 {
			return errors.New("crashed in between")
		}
		cancel()
		return nil
	}, nil)
	if len(again) != 2 || again[0] || !again[1] {
		t.Errorf("deliveries %v, want a first and a second", again)
	}
}

// A remediator that is killed over an event says nothing more; the one that takes over has no time to wait.
func TestAnEventOverWhichARemediatorDiedComesToTheNextOneSoon(t *testing.T) {
	s := startServer(t, t.TempDir(), -1)
	defer s.Stop()
	publisher, first, second := connect(t, s.URL()), connect(t, s.URL()), connect(t, s.URL())
	publish(t, publisher, 1)
	has, ended := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		_ = first.Events(ctx, "d", func(ctx context.Context, _ Delivery) error {
			close(has)
			<-ctx.Done()
			return ctx.Err()
		}, nil)
	}()
	<-has
	first.Close() // as a killed process leaves it
	begin := time.Now()
	cancel()
	<-ended
	if d := collect(t, second, "d", 1)[0]; !d.Again {
		t.Errorf("%+v: not said to come again", d)
	}
	if took := time.Since(begin); took > againAfter+soon {
		t.Errorf("the next one had it after %v", took)
	}
}

func TestAnEventThatTakesLongIsGivenToNobodyElse(t *testing.T) {
	s := startServer(t, t.TempDir(), -1)
	defer s.Stop()
	publisher, slow := connect(t, s.URL()), connect(t, s.URL())
	publish(t, publisher, 1, 2)
	var had []Delivery
	ctx, cancel := context.WithCancel(t.Context())
	if err := slow.Events(ctx, "d", func(_ context.Context, d Delivery) error {
		if had = append(had, d); len(had) == 1 {
			time.Sleep(againAfter + time.Second)
		} else {
			cancel()
		}
		return nil
	}, nil); err != nil {
		t.Fatal(err)
	}
	if len(had) != 2 || had[1].Again || had[0].Sequence == had[1].Sequence {
		t.Errorf("%+v", had)
	}
}
