package checkpoint

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
)

// troop is a gang of ranks that follow the hook's protocol, one pod of two ranks a node, and their agents.
type troop struct {
	mu    sync.Mutex
	ranks []*rank
	said  []string // verbs, with the round, in order of arrival
	away  map[string]bool
	skew  map[int]int64 // steps by which a rank is ahead of its ring when it is armed
	mute  map[int]string
	fails map[int]string // by rank: the error of its save
	wrote *bus.Save      // the manifest
	by    int            // its writer
}

type rank struct {
	bus.RankStatus
	pod    string
	memory map[string]bus.RankReply // by verb and req
	holds  string                   // the round it holds for
}

func newTroop(pods int) *troop {
	t := &troop{away: map[string]bool{}, skew: map[int]int64{}, mute: map[int]string{}, fails: map[int]string{}, by: -1}
	for r := range 2 * pods {
		t.ranks = append(t.ranks, &rank{pod: fmt.Sprintf("pod%d", r/2), memory: map[string]bus.RankReply{}, RankStatus: bus.RankStatus{
			Rank: r, WorldSize: 2 * pods, Step: 100, Connected: true, CanSave: true, Exit: "running", Section: "step", MedianStepS: .1, P99StepS: .1, SaveS: .2,
		}})
	}
	return t
}

func (t *troop) members() (out []Member) {
	for k := range len(t.ranks) / 2 {
		out = append(out, Member{Node: fmt.Sprintf("n%d", k), PodUID: fmt.Sprintf("pod%d", k)})
	}
	return out
}

func (t *troop) Request(ctx context.Context, node, verb string, c bus.Command) (bus.Reply, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		return bus.Reply{}, ctx.Err()
	}
	if t.away[node] {
		return bus.Reply{}, bus.ErrNoAgent
	}
	if verb != bus.VerbStatus {
		t.said = append(t.said, node+" "+verb+" "+c.Req)
	}
	var out bus.Reply
	status := bus.PodStatus{PodUID: "pod" + node[1:]}
	for _, r := range t.ranks {
		if r.pod != status.PodUID || !slices.Contains(c.PodUIDs, r.pod) {
			continue
		}
		status.Ranks = append(status.Ranks, r.RankStatus)
		if t.mute[r.Rank] == verb {
			out.Ranks = append(out.Ranks, bus.RankReply{PodUID: r.pod, Rank: r.Rank, T: "timeout"})
		} else if verb == bus.VerbManifest && r.Rank == c.Writer {
			t.wrote, t.by = c.Manifest, r.Rank
			out.Ranks = append(out.Ranks, bus.RankReply{PodUID: r.pod, Rank: r.Rank, T: "manifested", Save: &bus.Save{CRC32: "0badf00d"}})
		} else if verb != bus.VerbManifest && verb != bus.VerbStatus {
			out.Ranks = append(out.Ranks, t.answer(r, verb, c))
		}
	}
	if verb == bus.VerbStatus {
		out.Pods = []bus.PodStatus{status}
	}
	return out, nil
}

func (t *troop) answer(r *rank, verb string, c bus.Command) bus.RankReply {
	if had, ok := r.memory[verb+c.Req]; ok {
		return had
	}
	a := bus.RankReply{PodUID: r.pod, Rank: r.Rank}
	_, cancelled := r.memory[bus.VerbCancel+c.Req]
	switch verb {
	case bus.VerbArm:
		r.Step += t.skew[r.Rank]
		delete(t.skew, r.Rank)
		switch {
		case cancelled:
			a.T, a.Reason = "nack", "cancelled"
		case r.holds != "":
			a.T, a.Reason = "nack", "busy"
		case r.Step >= c.AtStep:
			a.T, a.Reason = "nack", "past"
		default:
			a.T, a.AtStep, r.holds, r.Step = "armed", c.AtStep, c.Req, c.AtStep
		}
	case bus.VerbGo:
		if r.holds != c.Req {
			return bus.RankReply{PodUID: r.pod, Rank: r.Rank, T: "nack", Reason: "unknown"}
		}
		a.T, a.Error = "saved", t.fails[r.Rank]
		a.Save = &bus.Save{Step: r.Step, Dir: fmt.Sprintf("step-%d", r.Step), Bytes: 5, Files: []bus.SaveFile{{Name: fmt.Sprintf("rank-%d.pt", r.Rank), Bytes: 5}}}
	case bus.VerbCancel, bus.VerbRelease:
		if a.T = verb; r.holds == c.Req {
			r.holds = ""
		}
	}
	r.memory[verb+c.Req] = a
	return a
}

func (t *troop) holding() (out []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.ranks {
		if r.holds != "" {
			out = append(out, r.Rank)
		}
	}
	return out
}

func (t *troop) save(q Request) (bus.Save, error) {
	if q.Members = t.members(); q.ID == "" {
		q.ID = "inc-1"
	}
	return (&Coordinator{Agents: t, Log: slog.New(slog.DiscardHandler)}).Save(context.Background(), q)
}

func TestAllRanksSaveOneStepAndThenAManifestIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTroop(2)
		s, err := g.save(Request{})
		if err != nil || s.Step != 102 || len(s.Files) != 4 || s.CRC32 != "0badf00d" || g.by != 0 || len(g.wrote.Files) != 4 || g.wrote.Files[3].Rank != 3 {
			t.Fatalf("%+v, %v, manifest %+v by %d", s, err, g.wrote, g.by)
		}
		if len(g.holding()) != 4 {
			t.Errorf("%v hold, all should until they are released", g.holding())
		}
		if err := (&Coordinator{Agents: g, Log: slog.New(slog.DiscardHandler)}).Release(context.Background(), g.members(), s); err != nil || len(g.holding()) != 0 {
			t.Errorf("%v still hold: %v", g.holding(), err)
		}
	})
}

func TestARankThatIsPastCancelsTheTryAndTheNextIsHigher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTroop(2)
		g.skew[3] = 50
		s, err := g.save(Request{})
		if err != nil || s.Step <= 150 || s.Req != "inc-1-1" {
			t.Fatalf("%+v, %v", s, err)
		}
		for _, r := range g.ranks {
			if _, ok := r.memory["cancelinc-1-0"]; !ok {
				t.Errorf("rank %d was not told that the first try is off", r.Rank)
			}
		}
	})
}

func TestATryThatFailsLetsEveryRankGoOn(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*troop)
		want string
	}{
		"one rank refuses":            {func(g *troop) { g.ranks[2].holds = "somebody else's" }, "rank 2 refused: nack busy"},
		"one rank never arms":         {func(g *troop) { g.mute[2] = bus.VerbArm }, "rank 2 refused: timeout"},
		"one rank never saves":        {func(g *troop) { g.mute[1] = bus.VerbGo }, "rank 1 did not save"},
		"one disk is full":            {func(g *troop) { g.fails[3] = "no space left on device" }, "no space left"},
		"nobody writes the manifest":  {func(g *troop) { g.mute[0] = bus.VerbManifest }, "did not write the manifest"},
		"no rank may be the writer":   {func(g *troop) {}, "every rank is excluded"},
		"an agent goes as it is told": {func(g *troop) {}, bus.ErrNoAgent.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newTroop(2)
				c.set(g)
				q := Request{}
				if strings.HasPrefix(name, "no rank may") {
					q.Exclude = []int{0, 1, 2, 3}
				}
				if strings.HasPrefix(name, "an agent") {
					q.Admit = func(context.Context, bus.Save) error {
						g.mu.Lock()
						defer g.mu.Unlock()
						g.away["n0"] = true // the writer's
						return nil
					}
				}
				_, err := g.save(q)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("error %v, want %q", err, c.want)
				}
				g.ranks[2].holds = strings.ReplaceAll(g.ranks[2].holds, "somebody else's", "")
				left := slices.DeleteFunc(g.holding(), func(r int) bool { return g.away["n0"] && r < 2 }) // who cannot be told meets its own deadline
				if len(left) > 0 {
					t.Errorf("ranks %v hold after %v", left, err)
				}
				if g.wrote != nil && !strings.Contains(name, "manifest") {
					t.Errorf("a manifest of %+v", g.wrote)
				}
			})
		})
	}
}

func TestWhatIsNotAdmittedHasNoManifestAndIsLeftToItsNewOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTroop(2)
		lost := errors.New("another leads")
		_, err := g.save(Request{Admit: func(context.Context, bus.Save) error { return lost }})
		if !errors.Is(err, lost) || g.wrote != nil || len(g.holding()) != 4 {
			t.Errorf("%v, manifest %+v, %v hold", err, g.wrote, g.holding())
		}
	})
}

func TestTheSameRoundAfterACrashFindsWhatTheFirstDid(t *testing.T) {
	for name, skew := range map[string]int64{"at its first try": 0, "at its second try": 50} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newTroop(2)
				g.skew[3] = skew
				first, err := g.save(Request{})
				if err != nil {
					t.Fatal(err)
				}
				again, err := g.save(Request{})
				if err != nil || again.Step != first.Step || again.Req != first.Req || again.Dir != first.Dir {
					t.Errorf("%+v, %v; the first was %+v", again, err, first)
				}
			})
		})
	}
}

func TestARankOnAFaultyGPUIsNeverTheWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTroop(2)
		if _, err := g.save(Request{Exclude: []int{0, 1}}); err != nil || g.by != 2 {
			t.Errorf("rank %d wrote: %v", g.by, err)
		}
	})
}

func TestNothingIsAskedOfAGangThatCannotSave(t *testing.T) {
	for name, set := range map[string]func(*troop){
		"a rank that cannot save":     func(g *troop) { g.ranks[1].CanSave = false },
		"a rank that has ended":       func(g *troop) { g.ranks[1].Connected, g.ranks[1].Exit = false, "exception" },
		"a rank that is stopped":      func(g *troop) { g.ranks[1].ProcState = "T" },
		"a rank in its setup":         func(g *troop) { g.ranks[1].Section = "setup" },
		"a rank without the hook":     func(g *troop) { g.ranks = slices.Delete(g.ranks, 3, 4) },
		"a rank of an older attempt":  func(g *troop) { g.ranks[0].Attempt = 1 },
		"an agent that does not come": func(g *troop) { g.away["n1"] = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newTroop(2)
				members := g.members()
				set(g)
				_, err := (&Coordinator{Agents: g, Log: slog.New(slog.DiscardHandler)}).Save(context.Background(), Request{ID: "inc-1", Members: members})
				if !errors.Is(err, ErrImpossible) || len(g.said) != 0 {
					t.Errorf("%v; said %q", err, g.said)
				}
			})
		})
	}
}

func TestNobodyAnswersForAnotherPodsRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTroop(2)
		r := round{c: &Coordinator{Agents: g, Log: slog.New(slog.DiscardHandler)}, q: Request{Members: g.members()}}
		r.g, _ = r.c.Observe(context.Background(), g.members())
		g.ranks[3].Rank = 0 // a liar, by now
		for k := range 50 {
			r.req = fmt.Sprint(k)
			got, err := r.ask(context.Background(), bus.VerbRelease, time.Second, bus.Command{})
			if err != nil || got[0].PodUID != "pod0" {
				t.Fatalf("pod %s answers for rank 0: %v", got[0].PodUID, err)
			}
		}
	})
}

func TestAnErrorOfOneAgentDoesNotKeepTheOthersFromBeingTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newTroop(8)
		r := round{c: &Coordinator{Agents: g, Log: slog.New(slog.DiscardHandler)}, q: Request{Members: g.members()}, req: "x"}
		g.away["n0"] = true
		r.tell(context.Background(), bus.VerbCancel)
		if len(g.said) != 7 {
			t.Errorf("told %q", g.said)
		}
	})
}
