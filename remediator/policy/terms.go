package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// Worth says when a statistical finding costs enough to restart a job for it.
type Worth struct {
	Horizon Duration `json:"horizon,omitempty" jsonschema_description:"The time whose loss is compared with the cost of a restart. A job that declares its end by the annotation pitcrew.dev/ends-at has its remaining time instead. Default 1h."`
	Margin  float64  `json:"margin,omitempty" jsonschema:"minimum=1" jsonschema_description:"How many times the loss must exceed the cost. Default 2."`
	Restart Duration `json:"restart,omitempty" jsonschema_description:"How long a restart is assumed to take for a job that Pitcrew has not restarted yet. Default 2m."`
}

// Defaults of the terms of statistical findings.
const (
	DefaultFor     = Duration(15 * time.Second)
	DefaultHorizon = Duration(time.Hour)
	DefaultMargin  = 2.0
	// DefaultRestart is how long a restart is assumed to take, from the first rank that stops to the last that steps again.
	DefaultRestart = 2 * time.Minute
	// MaxWithin bounds the time in which occurrences are counted.
	MaxWithin = Duration(7 * 24 * time.Hour)
)

// DefaultWorth is what a rule without the field means.
func DefaultWorth() Worth {
	return Worth{Horizon: DefaultHorizon, Margin: DefaultMargin, Restart: Duration(DefaultRestart)}
}

// fill completes what the file left out. What was written as zero stays, and is refused.
func (w *Worth) fill(given func(field string) bool) {
	if w == nil {
		return
	}
	def := DefaultWorth()
	for field, set := range map[string]func(){
		"horizon": func() { w.Horizon = def.Horizon }, "margin": func() { w.Margin = def.Margin }, "restart": func() { w.Restart = def.Restart },
	} {
		if !given(field) {
			set()
		}
	}
}

// Terms are what must hold before the finding of a rule acts. Package guard judges them.
type Terms struct {
	For   Duration `json:"for"`
	Worth Worth    `json:"worth"`
	// Statistical findings need a second family of signals, fresh telemetry and one culprit as well, and are verified by the pace of steps.
	Statistical bool `json:"statistical,omitempty"`
}

// TermsOf are the terms of an event under a rule; nil if there are none. A statistical finding has terms whatever the rule says.
func TermsOf(e event.Event, r Rule) *Terms {
	t := &Terms{Statistical: Statistical(e), Worth: DefaultWorth()}
	switch {
	case onlyNotifies(r):
		return nil
	case r.For != nil:
		t.For = *r.For
	case t.Statistical:
		t.For = DefaultFor
	}
	if r.Worth != nil {
		t.Worth = *r.Worth
	}
	if !t.Statistical && t.For == 0 {
		return nil
	}
	return t
}

// certainKinds are kinds of anomalies that somebody else has judged: an operator's own alert rule, and what Kubernetes reports.
var certainKinds = []string{"rule", "k8s"}

// Statistical reports whether an event is the finding of a comparison, so that chance or another cause may be behind it.
func Statistical(e event.Event) bool {
	return e.Type == event.Anomaly && !slices.Contains(certainKinds, e.Data.Cause.Kind)
}

// LossPerHour is how many GPU-seconds a finding costs its job in an hour, by what it has cost since its onset. A gateway reports the loss of
// all ranks; a node that of the one rank it sees, for which the others of a synchronous job wait.
func LossPerHour(e event.Event) float64 {
	v := e.Data.Evidence
	if !(v.DurationS > 0) || !(v.LostGPUSeconds > 0) {
		return 0
	}
	ranks := 1.0
	if event.GatewayOf(e.Source) == "" {
		ranks = float64(max(1, e.Data.Target.WorldSize))
	}
	return v.LostGPUSeconds * ranks / v.DurationS * time.Hour.Seconds()
}

func checkCount(w When, at string, fail checker) {
	switch {
	case w.Count == 0 && w.Within == 0:
	case w.Count == 0:
		fail(at+"within", "means nothing without count; add count, at least 2")
	case w.Count < 2:
		fail(at+"count", "must be at least 2; every event is one occurrence")
	case w.Within <= 0:
		fail(at+"count", "needs within: the time in which occurrences count, such as 24h")
	case w.Within > MaxWithin:
		fail(at+"within", fmt.Sprintf("must be at most %s: events are stored for so long", MaxWithin))
	}
}

func checkTerms(r *Rule, at string, fail checker) {
	if r.For == nil && r.Worth == nil {
		return
	}
	if len(r.Steps) > 0 && onlyNotifies(*r) {
		field := "for"
		if r.For == nil {
			field = "worth"
		}
		fail(at+field, "means nothing for a rule that only notifies; remove it")
	}
	if w := r.Worth; w != nil {
		fail.need(w.Horizon > 0, at+"worth.horizon", "must be above 0; a horizon of nothing saves nothing")
		fail.need(w.Margin >= 1, at+"worth.margin", "must be at least 1: below, a restart would cost more than it saves")
		fail.need(w.Restart > 0, at+"worth.restart", "must be above 0")
	}
}
