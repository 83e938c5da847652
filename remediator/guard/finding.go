package guard

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator/policy"
)

// FreshFor is how old the last word of a finding's own source may be when the incident starts to act. A gateway renews what stands every 5 s.
const FreshFor = 10 * time.Second

// VainMoves is how many moves in a row may not help before nothing statistical moves the job any more.
const VainMoves = 2

// Finding is what is known now of the finding behind a plan.
type Finding struct {
	Signal string
	// Statistical findings need every guard of this file; of others only Lasts judges.
	Statistical bool
	For         time.Duration
	Lasted      time.Duration // since its onset
	Heard       time.Time     // when its source last said that it holds

	// Confirms are the families of signals that the node itself measures on the same GPU or host, and that went bad with it. Nothing that
	// the training pod says is among them.
	Confirms []string
	// Against are standing findings about the job that name another culprit, or none.
	Against []string

	Loss    float64 // GPU-seconds in an hour
	Cost    float64 // GPU-seconds of a restart
	Shown   bool    // the job itself has shown what a restart costs
	Horizon time.Duration
	Margin  float64
}

// Saves are the GPU-seconds that the finding costs within the horizon.
func (f Finding) Saves() float64 { return f.Loss * f.Horizon.Hours() }

func lasts(_ State, a Action, now time.Time) Verdict {
	f := a.Finding
	v := Verdict{Allowed: f.Lasted >= f.For, Current: rounded(f.Lasted), Limit: rounded(f.For), Detail: "since the onset of " + f.Signal}
	if !v.Allowed {
		v.Until = now.Add(f.For - f.Lasted)
	}
	return v
}

// certain is the verdict of a guard that judges statistical findings only.
func certain(f *Finding) (Verdict, bool) {
	return Verdict{Allowed: true, Detail: f.Signal + " is certain"}, !f.Statistical
}

func secondSignal(_ State, a Action, _ time.Time) Verdict {
	f := a.Finding
	if v, yes := certain(f); yes {
		return v
	}
	if len(f.Confirms) == 0 {
		return Verdict{Current: "none", Limit: "1", Detail: "no family of signals that the node itself measures confirms " + f.Signal}
	}
	return Verdict{Allowed: true, Current: strings.Join(f.Confirms, ", "), Limit: "1", Detail: "measured by the node itself"}
}

func oneCulprit(_ State, a Action, _ time.Time) Verdict {
	f := a.Finding
	if v, yes := certain(f); yes {
		return v
	}
	if len(f.Against) > 0 {
		return Verdict{Detail: "findings contradict each other: " + f.Signal + " names this node; besides " + strings.Join(f.Against, "; ")}
	}
	return Verdict{Allowed: true}
}

func worthIt(_ State, a Action, _ time.Time) Verdict {
	f := a.Finding
	if v, yes := certain(f); yes {
		return v
	}
	need := f.Margin * f.Cost
	v := Verdict{Allowed: f.Loss > 0 && f.Cost > 0 && f.Saves() >= need, Current: gpuSeconds(f.Saves()), Limit: gpuSeconds(need)}
	from := "assumed, since this job was not restarted yet"
	if f.Shown {
		from = "as the job's own checkpoint and restart took"
	}
	v.Detail = fmt.Sprintf("lost in %s; a restart costs %s (%s), margin %g", policy.Duration(f.Horizon), gpuSeconds(f.Cost), from, f.Margin)
	return v
}

func fresh(_ State, a Action, now time.Time) Verdict {
	f := a.Finding
	if v, yes := certain(f); yes {
		return v
	}
	v := Verdict{Limit: rounded(FreshFor), Current: "unknown", Detail: "since its source last confirmed " + f.Signal}
	if f.Heard.IsZero() {
		return v
	}
	age := max(0, now.Sub(f.Heard))
	v.Current, v.Allowed = rounded(age), age <= FreshFor
	return v
}

// notInVain looks at the moves that were made for statistical findings of the job. The same finding does not act twice after a move that did
// not help, and two such moves in a row end all of them.
func notInVain(s State, a Action, _ time.Time) Verdict {
	f := a.Finding
	if v, yes := certain(f); yes {
		return v
	}
	inARow, same := Vain(s.Grants, a.Job.UID, a.Incident)
	v := Verdict{Allowed: true, Current: fmt.Sprint(inARow), Limit: fmt.Sprint(VainMoves), Detail: "moves in a row that did not help the job"}
	switch {
	case inARow >= VainMoves:
		v.Allowed = false
	case slices.Contains(same, f.Signal):
		v.Allowed = false
		v.Detail = "the job was moved for " + f.Signal + " before, and that did not help"
	}
	return v
}

// Vain counts the latest moves in a row of a job that did not help, and lists the findings of all that did not. Only a move that helped ends the
// row; one of which nobody could tell changes nothing. The grant of one incident is left out.
func Vain(grants []Grant, job, without string) (inARow int, findings []string) {
	var moves []Grant
	for _, g := range grants {
		if job != "" && g.Job == job && g.Incident != without && (g.movedForFinding() || g.Finding != "" && g.Vain) {
			moves = append(moves, g)
		}
	}
	slices.SortStableFunc(moves, func(x, y Grant) int { return x.At.Compare(y.At) })
	for _, g := range moves {
		switch {
		case g.Vain:
			inARow++
			findings = append(findings, g.Finding)
		case g.Helped:
			inARow = 0
		}
	}
	return inARow, findings
}

func rounded(d time.Duration) string {
	return policy.Duration(d.Round(100 * time.Millisecond)).String()
}

func gpuSeconds(v float64) string { return fmt.Sprintf("%.4g GPU-s", v) }
