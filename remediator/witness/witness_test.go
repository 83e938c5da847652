package witness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// stage is a cluster whose witnesses the test sets.
type stage struct {
	mu        sync.Mutex
	now       time.Time
	connected bool
	answers   map[string]bool // kubelets
	peers     Peers
	others    []Evidence
	racks     map[string]string
	refuse    error
	said      []event.Event
	set       []bus.Condition
	w         *Watch
}

func newStage() *stage {
	s := &stage{now: time.Unix(1_800_000_000, 0), connected: true, peers: PeersStill, answers: map[string]bool{}, racks: map[string]string{}}
	s.w = New(Options{
		Cluster: "demo", Now: func() time.Time { return s.now }, Connected: func() bool { return s.connected }, Log: slog.New(slog.DiscardHandler),
		Silent: func(_ context.Context, n string) bool { s.mu.Lock(); defer s.mu.Unlock(); return !s.answers[n] },
		Peers:  func(context.Context, string) (Peers, string) { return s.peers, "rank 3 made no step" },
		Others: func(context.Context, string) []Evidence { return s.others },
		Domains: func(n string) []string {
			if s.racks[n] == "" {
				return nil
			}
			return []string{s.racks[n]}
		},
		Boot: func(string) string { return "boot-1" },
		Publish: func(e event.Event) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.refuse != nil {
				return s.refuse
			}
			if _, err := event.Encode(e); err != nil {
				return err
			}
			s.said = append(s.said, e)
			return nil
		},
		Set: func(_ context.Context, c bus.Condition) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.refuse != nil {
				return s.refuse
			}
			s.set = append(s.set, c)
			return nil
		},
	})
	return s
}

// quiet lets n1 be heard last d ago, and the others now.
func (s *stage) quiet(d time.Duration, others ...string) {
	s.w.Heard("n1")
	s.later(d, others...)
}

// later lets time pass, and looks when the others have just been heard.
func (s *stage) later(d time.Duration, others ...string) {
	s.now = s.now.Add(d)
	for _, o := range others {
		s.w.Heard(o)
	}
	s.w.Look(context.Background())
}

// lost lists the nodes that were published as lost.
func (s *stage) lost() (out []string) {
	for _, e := range s.said {
		if e.Type == event.Fault {
			out = append(out, e.Data.Target.Node)
		}
	}
	slices.Sort(out)
	return out
}

func TestANodeIsLostOnlyByTwoWitnessesAndEvidenceOrTime(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*stage)
		wait time.Duration
		want []Kind // nil: not lost
	}{
		"agent silent, kubelet dead, peers stalled":      {func(*stage) {}, 2 * time.Second, []Kind{PeersStalled}},
		"agent silent for less than three beats":         {func(*stage) {}, time.Second, nil},
		"the kubelet answers: an upgrade of the agent":   {func(s *stage) { s.answers["n1"] = true }, time.Minute, nil},
		"the peers step: a partition of the front end":   {func(s *stage) { s.peers = PeersStepping }, time.Hour, nil},
		"the peers save, for less than the lease":        {func(s *stage) { s.peers = PeersUnknown }, 20 * time.Second, nil},
		"no peer can be read, for longer than the lease": {func(s *stage) { s.peers = PeersUnknown }, 41 * time.Second, []Kind{}},
		"out of service": {func(s *stage) { s.peers, s.others = PeersUnknown, []Evidence{{OutOfService, "taint"}} }, 2 * time.Second, []Kind{OutOfService}},
		"out of service while the rest of the gang goes on": {func(s *stage) { s.peers, s.others = PeersStepping, []Evidence{{OutOfService, "taint"}} }, 2 * time.Second, []Kind{OutOfService}},
		"a silent claim alone is no haste":                  {func(s *stage) { s.peers, s.others = PeersUnknown, []Evidence{{ClaimSilent, "90 s"}} }, 20 * time.Second, nil},
		"a silent claim after the lease":                    {func(s *stage) { s.peers, s.others = PeersUnknown, []Evidence{{ClaimSilent, "90 s"}} }, 41 * time.Second, []Kind{ClaimSilent}},
		"a silent claim against peers that step":            {func(s *stage) { s.peers, s.others = PeersStepping, []Evidence{{ClaimSilent, "90 s"}} }, time.Hour, nil},
		"a process that ended says nothing about its node":  {func(s *stage) { s.peers, s.others = PeersUnknown, []Evidence{{ProcessGone, "exit 1"}} }, 20 * time.Second, nil},
		"an unknown kind proves nothing":                    {func(s *stage) { s.peers, s.others = PeersUnknown, []Evidence{{"rumor", ""}} }, 20 * time.Second, nil},
		"the observer itself was cut off from the bus":      {func(s *stage) { s.connected = false }, time.Minute, nil},
		"two kinds": {func(s *stage) { s.others = []Evidence{{ProcessGone, "exit 1"}} }, 2 * time.Second, []Kind{PeersStalled, ProcessGone}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage()
			c.set(s)
			s.quiet(c.wait, "n2", "n3")
			if (len(s.said) == 1) != (c.want != nil) || len(s.set) != len(s.said) {
				t.Fatalf("%d events and %d conditions: %+v", len(s.said), len(s.set), s.said)
			}
			if c.want == nil {
				return
			}
			got := []Kind{}
			for _, e := range EvidenceOf(s.said[0]) {
				got = append(got, e.Kind)
				if e.Detail == "" {
					t.Errorf("%s has no detail in %q", e.Kind, s.said[0].Data.Evidence.Raw)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("evidence %v, want %v", got, c.want)
			}
			if none := strings.Contains(s.said[0].Data.Evidence.Raw, silenceAlone); none != (len(c.want) == 0) {
				t.Errorf("%q", s.said[0].Data.Evidence.Raw)
			}
			if got, want := AllowsSecondAttempt(EvidenceOf(s.said[0])), len(c.want) > 0; got != want {
				t.Errorf("a second attempt is allowed: %v, want %v", got, want)
			}
		})
	}
}

func TestManyThatFallSilentTogetherProveNothingByThemselves(t *testing.T) {
	for name, c := range map[string]struct {
		set    func(*stage)
		silent []string
		heard  []string
		apart  time.Duration // between one silence and the next
		want   []string
	}{
		"two of three":                              {func(*stage) {}, []string{"a", "b"}, []string{"c"}, 0, nil},
		"two of three, declared off":                {func(s *stage) { s.others = []Evidence{{OutOfService, "taint"}} }, []string{"a", "b"}, []string{"c"}, 0, []string{"a", "b"}},
		"two of five":                               {func(*stage) {}, []string{"a", "b"}, []string{"c", "d", "e"}, 0, []string{"a", "b"}},
		"a whole rack, and its jobs go on":          {func(s *stage) { s.peers = PeersStepping }, []string{"r1a", "r1b"}, []string{"c", "d", "e"}, 0, nil},
		"a whole rack, by silence alone":            {func(s *stage) { s.peers = PeersUnknown }, []string{"r1a", "r1b"}, []string{"c", "d", "e"}, 0, nil},
		"a whole rack whose jobs stand still":       {func(*stage) {}, []string{"r1a", "r1b"}, []string{"c", "d", "e"}, 0, []string{"r1a", "r1b"}},
		"a whole rack whose claims are silent":      {func(s *stage) { s.peers, s.others = PeersUnknown, []Evidence{{ClaimSilent, "x"}} }, []string{"r1a", "r1b"}, []string{"c", "d", "e"}, 0, []string{"r1a", "r1b"}},
		"a rack of which one is heard":              {func(s *stage) { s.peers = PeersUnknown }, []string{"r1a", "r1b"}, []string{"r1c", "c", "d"}, 0, []string{"r1a", "r1b"}},
		"the only node of a rack":                   {func(s *stage) { s.peers = PeersUnknown }, []string{"r1a"}, []string{"c", "d"}, 0, []string{"r1a"}},
		"a rack, one after the other in many hours": {func(s *stage) { s.peers = PeersUnknown }, []string{"r1a", "r1b"}, []string{"c", "d", "e"}, 3 * time.Hour, []string{"r1a", "r1b"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage()
			c.set(s)
			for _, n := range append(slices.Clone(c.silent), c.heard...) {
				s.racks[n] = strings.TrimRight(n, "abcde") // r1, or none
				s.w.Heard(n)
			}
			for i := range c.silent {
				if i > 0 && c.apart > 0 {
					s.later(c.apart, append(slices.Clone(c.silent[i:]), c.heard...)...)
				}
			}
			s.later(time.Minute, c.heard...)
			if got := s.lost(); !slices.Equal(got, c.want) {
				t.Errorf("lost %v, want %v", got, c.want)
			}
		})
	}
}

func TestABatchAfterABatchIsStillMostOfTheFleet(t *testing.T) {
	s := newStage()
	s.peers = PeersUnknown
	s.others = []Evidence{{OutOfService, "taint"}}
	nodes := strings.Fields("a b c d e f g h i j")
	for _, n := range nodes {
		s.w.Heard(n)
	}
	s.later(2*time.Second, nodes[4:]...)
	s.others, s.peers = nil, PeersStill
	s.later(2*time.Second, nodes[8:]...)
	if got := s.lost(); !slices.Equal(got, nodes[:4]) {
		t.Errorf("lost %v: the next four came within the minute, so that 8 of 10 are silent", got)
	}
}

func TestALossIsRepeatedWhileItLastsAndClearedWhenTheAgentIsHeard(t *testing.T) {
	s := newStage()
	s.quiet(2*time.Second, "n2", "n3")
	s.later(time.Second, "n2", "n3")
	if len(s.said) != 1 || len(s.set) != 1 {
		t.Fatalf("%d events, %d conditions, want one each", len(s.said), len(s.set))
	}
	c := s.set[0]
	if c.Node != "n1" || c.Key != Key || !c.Active || c.BootID != "boot-1" || c.Event.ID != s.said[0].ID || !c.Since.Equal(s.said[0].Data.Onset) {
		t.Errorf("condition %+v", c)
	}
	for range 3 {
		s.later(31*time.Second, "n2", "n3")
	}
	if len(s.said) != 1 || len(s.set) != 4 || !s.set[3].Active || s.set[3].Event.ID != c.Event.ID {
		t.Fatalf("%d events, %d conditions: the same is set again every 30 s and not published again", len(s.said), len(s.set))
	}
	s.w.Heard("n1")
	if !s.w.Alive("n1") {
		t.Error("heard, and not alive")
	}
	s.later(0, "n2", "n3")
	last := s.set[len(s.set)-1]
	if len(s.set) != 5 || last.Active || last.Key != Key || last.Event == nil || last.Event.Type != event.Recovery || len(s.said) != 2 || s.said[1].Type != event.Recovery {
		t.Fatalf("it was not cleared: %+v", last)
	}
	s.later(0, "n2", "n3")
	s.quiet(2*time.Second, "n2", "n3")
	if got := s.lost(); len(got) != 2 || s.said[0].ID == s.said[2].ID {
		t.Errorf("a second loss is a new event: %+v", s.said)
	}
}

func TestALossEndsWhenTheKubeletAnswersOrTheNodeIsDeleted(t *testing.T) {
	for name, back := range map[string]func(*stage){
		"its kubelet answers":     func(s *stage) { s.answers["n1"] = true },
		"its Node object is gone": func(s *stage) { s.w.o.Known = func(n string) bool { return n != "n1" } },
	} {
		s := newStage()
		s.quiet(2*time.Second, "n2", "n3")
		back(s)
		s.later(31*time.Second, "n2", "n3")
		s.later(time.Second, "n2", "n3")
		if last := s.set[len(s.set)-1]; last.Active || last.Event.Data.Evidence.Raw != name {
			t.Errorf("%s: %+v", name, last)
		}
	}
}

func TestStrongerEvidenceIsANewEventOfTheSameLoss(t *testing.T) {
	s := newStage()
	s.peers = PeersUnknown
	s.quiet(41*time.Second, "n2", "n3")
	s.others = []Evidence{{OutOfService, "taint"}}
	s.later(31*time.Second, "n2", "n3")
	if len(s.said) != 2 || s.said[0].ID == s.said[1].ID || !s.said[0].Data.Onset.Equal(s.said[1].Data.Onset) {
		t.Fatalf("%+v", s.said)
	}
	if AllowsSecondAttempt(EvidenceOf(s.said[0])) || !AllowsSecondAttempt(EvidenceOf(s.said[1])) || len(EvidenceOf(*s.set[1].Event)) != 1 {
		t.Errorf("%+v", s.said)
	}
	s.others = nil // what was proven stays proven
	s.later(31*time.Second, "n2", "n3")
	if len(s.said) != 2 || len(EvidenceOf(*s.set[len(s.set)-1].Event)) != 1 {
		t.Errorf("%+v", s.set)
	}
}

func TestWhatCannotBePublishedIsTriedAgain(t *testing.T) {
	s := newStage()
	s.refuse = errors.New("full")
	s.quiet(2*time.Second, "n2", "n3")
	s.refuse = nil
	s.later(time.Second, "n2", "n3")
	if len(s.said) != 1 || len(s.set) != 1 {
		t.Fatalf("%d events, %d conditions", len(s.said), len(s.set))
	}
	s.refuse = errors.New("full")
	s.later(time.Second, "n1", "n2", "n3")
	s.refuse = nil
	s.later(time.Second, "n1", "n2", "n3")
	if last := s.set[len(s.set)-1]; last.Active {
		t.Error("the end of the loss was forgotten")
	}
}

func TestANewLeaderTakesOverALoss(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"": 0, "whose clock was ahead": time.Minute} {
		before := newStage()
		before.now = before.now.Add(ahead)
		before.quiet(2*time.Second, "n2", "n3")
		s := newStage()
		s.w.Heard("n1") // from the gangs, at the start
		s.w.Adopt(before.set[0])
		s.later(2*time.Second, "n2", "n3")
		s.later(31*time.Second, "n2", "n3")
		if len(s.said) != 0 || len(s.set) == 0 || s.set[0].Event.ID != before.said[0].ID {
			t.Fatalf("%s: it was reported anew: %+v", name, s.said)
		}
		s.later(time.Second, "n1", "n2", "n3")
		s.later(time.Second, "n1", "n2", "n3")
		if last := s.set[len(s.set)-1]; last.Active {
			t.Errorf("%s: it was not cleared", name)
		}
	}
}

func TestASilentNodeThatIsNotLostIsAskedLessAndLess(t *testing.T) {
	s := newStage()
	asked := 0
	s.w.o.Silent = func(context.Context, string) bool { asked++; return false }
	s.quiet(2*time.Second, "n2", "n3")
	for range 4 * 60 {
		s.later(250*time.Millisecond, "n2", "n3")
	}
	if asked < 10 || asked > 50 {
		t.Errorf("asked %d times in a minute", asked)
	}
}

func TestALookCostsWhatIsSilentAndNotWhatIsThere(t *testing.T) {
	s := newStage()
	known, domains := 0, 0
	s.w.o.Known = func(string) bool { known++; return true }
	of := s.w.o.Domains
	s.w.o.Domains = func(n string) []string { domains++; return of(n) }
	var all []string
	for k := range 5000 {
		all = append(all, fmt.Sprintf("n%d", k))
		s.w.Heard(all[k])
	}
	s.later(time.Second, all[1:]...)
	if got := testing.AllocsPerRun(100, func() { s.w.Look(context.Background()) }); got > 2 {
		t.Errorf("a look at 5,000 nodes that are all heard allocates %.0f times", got)
	}
	start := time.Now()
	for range 1000 {
		s.w.Look(context.Background())
	}
	t.Logf("a look at 5,000 nodes that are all heard takes %s", time.Since(start)/1000)
	if known+domains > 0 {
		t.Errorf("%d questions to the cluster about nodes that are heard", known+domains)
	}
	s.later(time.Second, all[1:]...)
	if len(s.said) != 1 || known != 1 || domains != 0 {
		t.Errorf("one silent node: %d events, %d and %d questions", len(s.said), known, domains)
	}
}

func TestPeersInACheckpointAreNeitherStalledNorStepping(t *testing.T) {
	for name, c := range map[string]struct {
		ranks map[int]bus.RankStatus
		want  Peers
	}{
		"none can be read":                      {nil, PeersUnknown},
		"one steps":                             {map[int]bus.RankStatus{1: {Section: "step", StepAgeS: 0.2, P99StepS: 0.1}}, PeersStepping},
		"a save of 2.5 s":                       {map[int]bus.RankStatus{1: {Section: "checkpoint", StepAgeS: 2.5, P99StepS: 0.1}, 2: {Section: "checkpoint", StepAgeS: 2.5, P99StepS: 0.1}}, PeersUnknown},
		"held by a round of ours":               {map[int]bus.RankStatus{1: {Section: "held", StepAgeS: 30, P99StepS: 0.1}}, PeersUnknown},
		"an evaluation":                         {map[int]bus.RankStatus{1: {Section: "eval", StepAgeS: 300, P99StepS: 0.1}}, PeersUnknown},
		"not yet begun":                         {map[int]bus.RankStatus{1: {Section: "setup", StepAgeS: 300}}, PeersUnknown},
		"one saves, one steps":                  {map[int]bus.RankStatus{1: {Section: "checkpoint", StepAgeS: 9}, 2: {Section: "step", StepAgeS: 0.2, P99StepS: 0.1}}, PeersStepping},
		"one saves, one waits for it":           {map[int]bus.RankStatus{1: {Section: "checkpoint", StepAgeS: 9}, 2: {Section: "step", StepAgeS: 9, P99StepS: 0.1}}, PeersStill},
		"a slow step within its own pace":       {map[int]bus.RankStatus{1: {Section: "step", StepAgeS: 20, P99StepS: 8}}, PeersStepping},
		"beyond three of its slowest":           {map[int]bus.RankStatus{1: {Section: "step", StepAgeS: 25, P99StepS: 8}}, PeersStill},
		"fast steps, below the floor":           {map[int]bus.RankStatus{1: {Section: "step", StepAgeS: 0.6, P99StepS: 0.01}}, PeersStepping},
		"one ended well":                        {map[int]bus.RankStatus{1: {Section: "step", StepAgeS: 60, P99StepS: 0.1, Exit: "clean"}}, PeersUnknown},
		"one ended with NCCL's word for a loss": {map[int]bus.RankStatus{1: {Section: "step", StepAgeS: 0.1, P99StepS: 0.1, Exit: "exception"}}, PeersStill},
	} {
		if got, detail := JudgePeers(c.ranks); got != c.want || (detail == "") != (got == PeersUnknown) {
			t.Errorf("%s: %q (%s), want %q", name, got, detail, c.want)
		}
	}
}

func TestTheTableOfProofsIsComplete(t *testing.T) {
	for _, k := range []Kind{PeersStalled, OutOfService, ClaimSilent, ProcessGone} {
		if p := k.Proves(); p.Reason == "" || !p.SecondAttempt {
			t.Errorf("%s: %+v", k, p)
		}
	}
	for _, p := range Proofs() {
		if p.DespiteFleet && !p.DespiteRack {
			t.Errorf("%s counts while the fleet is silent, but not while a rack is", p.Kind)
		}
	}
}

func TestAKubeletBehindACutCableLeavesTimeForTheOtherWitness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.w.o.Silent = func(ctx context.Context, _ string) bool { <-ctx.Done(); return true }
		s.w.o.Peers = func(ctx context.Context, _ string) (Peers, string) {
			select {
			case <-ctx.Done():
				return PeersStepping, ""
			case <-time.After(500 * time.Millisecond):
				return PeersStill, "rank 3"
			}
		}
		s.quiet(2*time.Second, "n2", "n3")
		if len(s.said) != 1 {
			t.Errorf("%d events, want 1", len(s.said))
		}
	})
}

func TestManyNodesAreJudgedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		s.w.o.Silent = func(ctx context.Context, _ string) bool { <-ctx.Done(); return true }
		var well []string
		for k := range 200 {
			if s.w.Heard(fmt.Sprintf("lost%d", k)); k > 0 {
				well = append(well, fmt.Sprintf("well%d", k), fmt.Sprintf("also%d", k))
			}
		}
		began := time.Now()
		s.quiet(2*time.Second, well...)
		if took := time.Since(began); len(s.said) != 201 || took > 1500*time.Millisecond {
			t.Errorf("%d events after %s", len(s.said), took)
		}
	})
}

func TestNodesThatWereTakenAwayDoNotCountAsSilent(t *testing.T) {
	s := newStage()
	s.w.o.Known = func(name string) bool { return name == "n1" || name == "n2" || name == "n3" }
	for _, gone := range []string{"g1", "g2", "g3", "g4"} {
		s.w.Heard(gone)
	}
	s.quiet(2*time.Second, "n2", "n3")
	if len(s.said) != 1 || s.said[0].Data.Target.Node != "n1" {
		t.Errorf("said %+v", s.said)
	}
}
