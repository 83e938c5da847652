package job

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/event"
)

// slowCauses name a class that is slower than one that differs in one thing alone. event.GatewaySignals has the same.
var slowCauses = map[class.By]event.Cause{
	class.Driver:    {Kind: "class", Name: "slow-driver"},
	class.Framework: {Kind: "class", Name: "slow-framework"},
}

// pair is two classes that are compared.
type pair struct {
	key     class.Key
	by      class.By
	against string
}

func (p pair) compare(o pair) int {
	return cmp.Or(strings.Compare(describe(&p.key), describe(&o.key)), cmp.Compare(p.by, o.by), strings.Compare(p.against, o.against))
}

// slower is a finding that is open about a class.
type slower struct {
	report   *report // nil: it was accepted
	accepted bool
	ratio    float64   // when it was said
	seen     time.Time // compared last
}

const (
	maxSlower    = 256            // findings about classes at once; beyond, no more are made
	slowerForget = 24 * time.Hour // without a run of the class
)

// compare sets a class against those that differ in the driver or the framework alone. One finding a class and key: the foremost.
// Where a part is unknown, more than one thing may differ, and nothing is said.
func (e *Engine) compare(now time.Time, a *attempt, k class.Key) {
	if k.GPU == "" || k.Driver == "" || k.Framework == "" {
		return
	}
	for _, by := range []class.By{class.Driver, class.Framework} {
		all := e.classes.store.Compare(k, by)
		e.counts.Comparisons += int64(len(all))
		all = slices.DeleteFunc(all, func(d class.Difference) bool { return d.Against == "" })
		for _, d := range all {
			if s := e.classes.slower[pair{k, by, d.Against}]; s != nil {
				switch s.seen = now; {
				case !d.Slow && d.Ratio < math.Sqrt(s.ratio):
					e.recovered(now, pair{k, by, d.Against}, fmt.Sprintf("the difference is ×%.3f now, %.3f to %.3f", d.Ratio, d.Lower, d.Upper))
				case s.accepted && d.Slow && d.Ratio > s.ratio*s.ratio:
					delete(e.classes.slower, pair{k, by, d.Against})
				}
			}
		}
		if len(all) > 0 && all[0].Slow && !e.known(k, by) && len(e.classes.slower) < maxSlower {
			e.slower(now, a, all[0])
		}
	}
}

func (e *Engine) known(k class.Key, by class.By) bool {
	for p := range e.classes.slower {
		if p.key == k && p.by == by {
			return true
		}
	}
	return false
}

func (e *Engine) slower(now time.Time, a *attempt, d class.Difference) {
	cause := slowCauses[d.By]
	own := d.Key.Driver
	if d.By == class.Framework {
		own = d.Key.Framework
	}
	p, ok := e.classes.store.Prior(d.Key, "")
	if !ok {
		return
	}
	t := event.Target{Cluster: e.o.Cluster, WorldSize: a.world, Attempt: a.told(), Job: jobOf(a.key), PodUID: a.anyPod()}
	out := event.Event{
		// The same pair has one id a day: a gateway that begins anew, and other gateways, do not say it again.
		ID:     event.NewID("//"+e.o.Cluster+"/class", append(parts(&d.Key), d.Key.Driver, d.Key.Framework, cause.Signal(), d.Against, now.UTC().Format(time.DateOnly))...),
		Source: event.GatewaySource(e.o.Cluster, e.o.Gateway, "detector"), Type: event.Anomaly, Time: now,
		Data: event.Data{Target: t, Cause: cause, Severity: event.Warning, Onset: now, Evidence: event.Evidence{
			Signal: classSignal, Unit: "s", Value: num(p.Location), Expected: num(p.Location / d.Ratio), Lower: num(p.Location / d.Upper), Upper: num(p.Location / d.Lower),
			Score: num(d.Score), Ratio: num(d.Ratio), Baseline: fmt.Sprintf("class(%d)", d.Others), BaselineSamples: d.Others, State: event.StateOpen,
			Raw: fmt.Sprintf("%s: with %s %s a step takes %.4g s, with %s %.4g s are expected (×%.3f, %.3f to %.3f at 95 %%), by %d runs against %d, step by step: look at the %s, not at a rank",
				describe(&d.Key), d.By, told(own), p.Location, told(d.Against), p.Location/d.Ratio, d.Ratio, d.Lower, d.Upper, d.Runs, d.Others, d.By),
		}},
	}
	if t.Job != nil {
		out.Subject = "job/" + t.Job.UID
	}
	s := &slower{ratio: d.Ratio, seen: now}
	e.classes.slower[pair{d.Key, d.By, d.Against}] = s
	s.report = e.open(now, s, cause.Signal()+" "+classSubject(&d.Key), out)
}

// evidence implements standing: it is that of when the pair was found.
func (s *slower) evidence(_ time.Time, state event.State) event.Evidence {
	ev := s.report.event.Data.Evidence
	ev.State = state
	return ev
}

// classSubject names a class in a key: its model, and a hash of all that it is.
func classSubject(k *class.Key) string {
	id := event.NewID("class", append(parts(k), k.Driver, k.Framework)...)
	return "class/" + plain(k.Model) + "/" + id[:8]
}

// forget ends findings about classes of which no run was seen for long.
func (e *Engine) forgetSlower(now time.Time) {
	var old []pair
	for p, s := range e.classes.slower {
		if now.Sub(s.seen) >= slowerForget {
			old = append(old, p)
		}
	}
	slices.SortFunc(old, pair.compare)
	for _, p := range old {
		e.recovered(now, p, "no run of it was compared for a day")
	}
}

func (e *Engine) recovered(now time.Time, p pair, why string) {
	s := e.classes.slower[p]
	delete(e.classes.slower, p)
	if s.report == nil {
		return
	}
	ev := s.evidence(now, event.StateCleared)
	ev.Raw = why
	e.close(now, s.report, ev)
}

// parts are what names a workload on its GPUs, without driver and framework.
func parts(k *class.Key) []string {
	return []string{k.Model, k.GPU, strconv.FormatInt(k.TokensPerStep, 10), strconv.FormatInt(k.SequenceLength, 10), strconv.FormatInt(k.Ranks, 10)}
}

// describe names a class to a person.
func describe(k *class.Key) string {
	s := fmt.Sprintf("%s on %d × %s", k.Model, k.Ranks, told(k.GPU))
	if k.TokensPerStep > 0 {
		s += fmt.Sprintf(", %d tokens a step", k.TokensPerStep)
	}
	if k.SequenceLength > 0 {
		s += fmt.Sprintf(", sequences of %d", k.SequenceLength)
	}
	return s
}

func told(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
