package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// follower is a receiver that takes everything, and canaries.
type follower struct {
	stuck
	canaries []string
}

func (*follower) Follows() bool { return true }

func (f *follower) Probe(_ context.Context, n Notice) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.canaries = append(f.canaries, n.Key)
	return errors.New("away")
}

func TestOfStepsAndCanariesThatWaitTheNewestIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, plain := &follower{stuck: stuck{free: make(chan struct{})}}, &stuck{free: make(chan struct{})}
		close(plain.free)
		var c tally
		probed := 0
		d, stop := run(t, Options{Receivers: []Receiver{f, plain}, Count: c.count, Probed: func(string, Notice, error) { probed++ }})
		d.Tell(notice(Opened))
		synctest.Wait()
		for i := range 50 {
			d.Tell(notice(Progress, func(n *Notice) { n.Key = fmt.Sprint("p", i) }))
			d.Tell(notice(Progress, func(n *Notice) { n.Key, n.Incident = fmt.Sprint("q", i), "inc-2" }))
			d.Probe(Notice{Key: fmt.Sprint("c", i)})
		}
		time.Sleep(time.Second)
		close(f.free)
		synctest.Wait()
		if !slices.Equal(f.got, []string{"inc-1/opened", "p49", "q49"}) || !slices.Equal(f.canaries, []string{"c49"}) || !slices.Equal(plain.got, []string{"inc-1/opened"}) {
			t.Errorf("got %q, canaries %q, the other got %q", f.got, f.canaries, plain.got)
		}
		if probed != 1 || c.of(Failed)+c.of(Retried) != 0 || c.of(Sent) != 4 {
			t.Errorf("a canary is a notice: %v, %d probed", c.n, probed)
		}
		stop()
	})
}

func TestALeaderThatIsDeposedSendsNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &down{}
		d, stop := run(t, Options{Receivers: []Receiver{f}, First: time.Second})
		d.Tell(notice(Opened))
		d.Tell(notice(Waiting))
		time.Sleep(3 * time.Second)
		d.Forget()
		tried := len(f.tries)
		time.Sleep(2 * time.Hour)
		if len(f.tries) != tried {
			t.Errorf("%d tries after it was deposed", len(f.tries)-tried)
		}
		d.Tell(notice(Opened)) // it leads again
		time.Sleep(time.Second)
		if len(f.tries) == tried {
			t.Error("it tells nothing when it leads again")
		}
		stop()
	})
}

func TestWhatAnEarlierLeaderDeliveredIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{free: make(chan struct{})}
		close(s.free)
		var kept []Delivery
		d, stop := run(t, Options{Receivers: []Receiver{s}, Record: func(_ context.Context, d Delivery) { kept = append(kept, d) }})
		d.Tell(notice(Opened))
		synctest.Wait()
		stop()
		next, stopNext := run(t, Options{Receivers: []Receiver{s}})
		if !next.Owes(kept) || next.Owes(append(slices.Clone(kept), Delivery{Receiver: "stuck", Stage: Closed})) || next.Owes(nil) {
			t.Error("it owes the close of what was opened, and nothing else")
		}
		next.Delivered(kept)
		next.Tell(notice(Opened))
		next.Tell(notice(Closed))
		synctest.Wait()
		stopNext()
		if !slices.Equal(s.got, []string{"inc-1/opened", "inc-1/closed"}) {
			t.Errorf("got %q", s.got)
		}
	})
}

func TestDeliveriesThatAreRecordedAtOnceAreAllKept(t *testing.T) {
	s := records(t)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			if err := Keep(t.Context(), s, Delivery{Thread: "inc-1", Receiver: fmt.Sprint(i), Key: "k", Stage: Opened, At: began}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if r, _, err := s.Get(t.Context(), "inc-1"); err != nil || len(r.Deliveries) != 4 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAFileOfChannels(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := newPlace(t)
	put("url", p.URL+"/key-1234567\n")
	put("token", "xoxb-hidden-1\n")
	load := func(text string) ([]Receiver, error) {
		put("channels.yaml", text)
		return Channels(filepath.Join(dir, "channels.yaml"), "", records(t))
	}
	rs, err := load("channels:\n- name: ops\n  slack: {channel: C1, tokenFile: token}\n- name: tickets\n  webhook: {urlFile: url, headerFiles: {Authorization: token}, template: '{\"t\": {{ json .Summary }}}', canary: true}\n- name: plain\n  webhook: {urlFile: url}\n")
	if err != nil || len(rs) != 3 {
		t.Fatalf("%v, %v", rs, err)
	}
	if _, err := rs[1].Send(t.Context(), notice(Opened, func(n *Notice) { n.Summary = "a \"b\"\n" }).tidy()); err != nil || string(p.got()[0]) != `{"t": "a \"b\" "}` {
		t.Errorf("sent %s, %v", p.got(), err)
	}
	if _, can := rs[1].(Prober); !can {
		t.Error("canary: true is ignored")
	}
	if _, can := rs[2].(Prober); can {
		t.Error("a webhook gets canaries that it did not ask for")
	}
	put("url", p.URL+"/other-7654321\n") // a secret that was renewed
	if _, err := rs[2].Send(t.Context(), notice(Closed)); err != nil || p.path != "/other-7654321" {
		t.Errorf("posted to %s, %v", p.path, err)
	}
	for wrong, want := range map[string]string{
		"channels:\n- {name: a, slack: {channel: C1, tokenFile: none}}":      "tokenFile",
		"channels:\n- {name: a, slack: {channel: C1, token: xoxb-hidden-1}}": "token",
		"channels:\n- {name: a, slack: {tokenFile: token}}":                  "channel is missing",
		"channels:\n- {name: a}":                                                                            "either slack or webhook",
		"channels:\n- {name: 'A b', webhook: {urlFile: url}}":                                               "lower-case",
		"channels:\n- {name: a, webhook: {urlFile: url}}\n- {name: a, webhook: {urlFile: url}}":             "given twice",
		"channels:\n- {name: a, webhook: {urlFile: token}}":                                                 "http address",
		"channels:\n- {name: a, webhook: {urlFile: url, template: '{\"t\": \"{{ .Summary }}\"}'}}":          "does not make JSON",
		"channels:\n- {name: a, webhook: {urlFile: url, template: '{{ .Sumary }}'}}":                        "Sumary",
		"channels:\n- {name: a, webhook: {urlFile: url, template: '{{ range $i := 99999999 }}x{{ end }}'}}": "more than",
	} {
		if _, err := load(wrong); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "key-1234567") || strings.Contains(err.Error(), "xoxb-hidden-1") {
			t.Errorf("%s: %v, want %q", wrong, err, want)
		}
	}
}

func TestTheFirstLineSaysWhatIsBrokenWhatIsDoneAndWhetherAPersonIsNeeded(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	cases := []struct {
		n    Notice
		want string
	}{
		{Notice{Broken: "xid/79 on a2", Doing: "The pod is being moved."}, "xid/79 on a2. The pod is being moved. No person is needed."},
		{Notice{Broken: "xid/79 on a2", Doing: "Pitcrew waits: no node", Person: "free a node"}, "xid/79 on a2. Pitcrew waits: no node. A person is needed: free a node."},
		{Notice{Summary: "as it is"}, "as it is"},
	}
	for _, c := range cases {
		if got := c.n.tidy().Summary; got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	n := Notice{Broken: long, Doing: long, Person: long, Detail: long}.tidy()
	if len(n.Summary) > 1024 || len(n.Detail) > 3000 || !strings.Contains(n.Summary, "A person is needed: ") {
		t.Errorf("%d and %d bytes: %.80s", len(n.Summary), len(n.Detail), n.Summary)
	}
}
