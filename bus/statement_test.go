package bus

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestAStatementThatLiesUnderAnothersKeyOrIsMalformedIsRefusedAndReplacesWhatLayThere(t *testing.T) {
	b := testBus(t)
	at := time.Now()
	mine := Statement{Verb: StateAck, Node: "n1", Key: "anomaly/x gpu/G", By: "ada", At: at}
	other := Statement{Verb: StateMute, Key: "*", By: "eve", At: at, Until: at.Add(time.Hour)}
	set := func(key string, s Statement) {
		t.Helper()
		if err := b.Statements().Set(t.Context(), key, s); err != nil {
			t.Fatal(err)
		}
	}
	set(mine.ID(), mine)
	heard, refused := make(chan Change[Statement], 10), make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	go func() {
		done <- b.WatchStatements(ctx, nil, func(c Change[Statement]) { heard <- c }, func(key string, err error) { refused <- key + ": " + err.Error() })
	}()
	next := func() Change[Statement] {
		t.Helper()
		select {
		case c := <-heard:
			return c
		case <-time.After(20 * time.Second):
			t.Fatal("nothing is heard")
			return Change[Statement]{}
		}
	}
	if c := next(); c.Deleted || c.Value.By != "ada" || time.Since(c.Stored) > time.Minute {
		t.Errorf("heard %+v", c)
	}
	set(mine.ID(), other) // the right to acknowledge on n1 is none to mute everything
	if c := next(); !c.Deleted || c.Key != mine.ID() || c.Value != (Statement{}) {
		t.Errorf("heard %+v", c)
	}
	if why := <-refused; !strings.Contains(why, "another's key") {
		t.Error(why)
	}
	endless := other
	endless.Until = at.Add(1000 * time.Hour)
	set(endless.ID(), endless)
	if c, why := next(), <-refused; !c.Deleted || !strings.Contains(why, "at most 30 days") {
		t.Errorf("heard %+v, %s", c, why)
	}
	for key, text := range map[string]string{"ack.n1.x": "no JSON", "ack=0An1=0Ax": "{}", "ack.=zz": "{}"} {
		kv, err := b.js.KeyValue(t.Context(), StatementBucket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.PutString(t.Context(), key, text); err != nil {
			t.Fatal(err)
		}
		if why := <-refused; !strings.HasPrefix(why, key) {
			t.Errorf("%s: %s", key, why)
		}
	}
	set(other.ID(), other)
	if c := next(); c.Value.By != "eve" {
		t.Errorf("heard %+v", c)
	}
}

func TestARightToStateIsGivenByVerbAndNode(t *testing.T) {
	s := Statement{Verb: StateAck, Node: "n.1", Key: "anomaly/x gpu/G"}
	if got := path(s.ID()); got != "ack.n=2E1.anomaly=2Fx=20gpu=2FG" {
		t.Error(got)
	}
	s.Node = ""
	if got := path(s.ID()); !strings.HasPrefix(got, "ack.=.") {
		t.Error(got)
	}
}
