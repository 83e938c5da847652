package job

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/event"
)

// Work is what a rank tells of what it runs and on what; empty is unknown.
type Work struct {
	Workload  string // by the user's word: "model=gpt-124m;tokens=524288;seq=1024" and what else tells works apart
	GPU       string // model
	Driver    string // version
	Framework string // with its version
}

func (w *Work) sound() bool {
	return len(w.Workload) <= maxText && len(w.GPU) <= maxText && len(w.Driver) <= maxText && len(w.Framework) <= maxText
}

// heard gives the rank whose steps are taken in from this very pod, and its attempt; nil where there is none.
func (e *Engine) heard(job string, t event.Target) (*attempt, *member) {
	if job == "" {
		job = "pod/" + t.PodUID
	}
	k := key{job: job}
	if t.Attempt != nil {
		k.attempt = *t.Attempt
	}
	el, ok := e.jobs[k]
	if !ok {
		return nil, nil
	}
	a := el.Value.(*attempt)
	if m := a.members[*t.Rank]; m != nil && m.target.PodUID == t.PodUID {
		return a, m
	}
	return nil, nil
}

// Tell takes in what a rank says of its work. Only ranks whose steps are taken in are heard.
func (e *Engine) Tell(now time.Time, job string, t event.Target, w Work) {
	if e.o.Classes == nil || w.Workload == "" {
		return
	}
	if t.PodUID == "" || t.Rank == nil || len(job) > maxText || !w.sound() {
		e.counts.Malformed++
		return
	}
	if a, m := e.heard(job, t); m != nil && m.work != w {
		if w == a.class.last { // one copy of the words for all ranks
			w = a.class.last
		}
		m.work, a.class.last, a.class.stale = w, w, true
	}
}

// signature is what all ranks that told of their work agree on. ok is false while too few did, where they contradict each other,
// and where what they say is no workload.
func (a *attempt) signature() (s class.Signature, ok bool) {
	var one Work
	told := 0
	for _, m := range a.members {
		switch {
		case m.work == (Work{}):
			continue
		case told > 0 && m.work != one:
			return s, false
		}
		one = m.work
		told++
	}
	if told == 0 || float64(told) < coverage*float64(a.world) {
		return s, false
	}
	model, tokens, length, ok := parseWorkload(one.Workload)
	return class.Signature{
		Model: model, GPU: one.GPU, Driver: one.Driver, Framework: one.Framework, TokensPerStep: tokens, SequenceLength: length, Ranks: int64(a.world),
	}, ok
}

// parseWorkload reads "key=value" pairs with ";" between. The model is needed; what is not known by name is part of it, in order of
// the names, so that works that differ in anything are never taken for one.
func parseWorkload(text string) (model string, tokens, length int64, ok bool) {
	var others []string
	seen := map[string]bool{}
	for pair := range strings.SplitSeq(text, ";") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, is := strings.Cut(pair, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !is || name == "" || value == "" || seen[name] {
			return "", 0, 0, false
		}
		seen[name] = true
		switch name {
		case "model":
			model = value
		case "tokens", "seq":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n <= 0 {
				return "", 0, 0, false
			}
			if name == "tokens" {
				tokens = n
			} else {
				length = n
			}
		default:
			others = append(others, name+"="+value)
		}
	}
	slices.Sort(others)
	return strings.Join(append([]string{model}, others...), ";"), tokens, length, model != ""
}

// pace is one step of the whole job: what its ranks took for it.
type pace struct {
	step      int64
	at, first time.Time // of the first rank's end of the step; of its arrival
	have      int       // ranks
	took      []float64 // of the first maxTook of them
}

const maxTook = 256 // ranks whose middle is a step's duration; in a synchronous job all take the same

func (p *pace) duration() float64 {
	if len(p.took) == 0 {
		return math.NaN()
	}
	slices.Sort(p.took)
	n := len(p.took)
	return (p.took[(n-1)/2] + p.took[n/2]) / 2
}
