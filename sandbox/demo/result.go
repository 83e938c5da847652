package demo

import (
	"fmt"
	"io"
	"time"

	"github.com/pitcrew/pitcrew/remediator/incident"
)

// Result is one recovery as it was measured. Its JSON form is the demo's output with -o json.
type Result struct {
	Fault          string   `json:"fault"`
	Rank           int      `json:"rank"`
	Launcher       string   `json:"launcher"`
	Workload       string   `json:"workload"`
	Trainer        string   `json:"trainer"` // torch, or stand-in where none can be had
	OK             bool     `json:"ok"`
	Why            []string `json:"why,omitempty"` // why not ok
	CheckpointStep int64    `json:"checkpoint_step"`
	ResumedStep    int64    `json:"resumed_step"`
	LostSteps      int64    `json:"lost_steps"`
	FaultyNode     string   `json:"faulty_node"`
	NewNode        string   `json:"new_node"`
	Placement      string   `json:"placement"`
	Restart        string   `json:"restart"` // launcher | recreate
	RecoveredS     float64  `json:"recovered_s"`
	Phases         Phases   `json:"phases"`
	Incident       string   `json:"incident"`
	Signal         string   `json:"signal"`
	Rule           string   `json:"rule"`
	*Slowed                 // nil unless the fault slows a rank
}

// Phases are the seconds between the incident's recorded states; they add up to RecoveredS.
type Phases struct {
	Detect     float64 `json:"detect_s"`     // fault → incident opened
	Decide     float64 `json:"decide_s"`     // → plan approved
	Cordon     float64 `json:"cordon_s"`     // → cordon answered by the API server
	Checkpoint float64 `json:"checkpoint_s"` // → saved together, or found impossible
	Restart    float64 `json:"restart_s"`    // → placed, reserved, replaced, attempt begun
	FirstStep  float64 `json:"first_step_s"` // → every rank past the checkpoint
}

// phaseNames are the phases in order, for tables.
var phaseNames = []string{"detect", "decide", "cordon", "checkpoint", "restart", "first_step"}

func (p Phases) list() []float64 {
	return []float64{p.Detect, p.Decide, p.Cordon, p.Checkpoint, p.Restart, p.FirstStep}
}

// phases reads the incident's own clock. After a second plan the last time of each state counts.
func phases(i incident.Incident, fault time.Time) Phases {
	at := map[incident.State]time.Time{}
	for _, n := range i.Notes {
		if n.TookS > 0 || n.State == incident.Detected {
			at[n.State] = n.At
		}
	}
	prev := fault
	span := func(s incident.State) float64 {
		t, ok := at[s]
		if !ok || t.Before(prev) {
			return 0
		}
		d := t.Sub(prev).Seconds()
		prev = t
		return d
	}
	return Phases{
		Detect: span(incident.Detected), Decide: span(incident.Approved), Cordon: span(incident.Cordoned),
		Checkpoint: span(incident.Checkpointed), Restart: span(incident.Restarted), FirstStep: span(incident.Verified),
	}
}

func (r *Result) fail(format string, a ...any) {
	r.OK = false
	r.Why = append(r.Why, fmt.Sprintf(format, a...))
}

// fill takes over what the incident says.
func (r *Result) fill(i incident.Incident, node string, fault time.Time) {
	r.Incident, r.Restart = i.ID, i.Path
	r.Phases = phases(i, fault)
	r.FaultyNode = node
	for _, f := range i.Faults { // a survivor's cry may have come first
		if r.Signal == "" || f.Moves && f.Node == node {
			r.Signal = f.Signal
		}
	}
	r.NewNode, r.Placement = r.FaultyNode, "same-node"
	for _, m := range i.Moves {
		switch {
		case m.From != r.FaultyNode:
		case m.Decision == nil:
			r.NewNode = m.To
			if m.To != m.From {
				r.Placement = "scheduler"
			}
		default:
			r.NewNode, r.Placement = m.To, "equivalent"
			if m.TierLoss > 0 {
				r.Placement = fmt.Sprintf("degraded by %d", m.TierLoss)
			}
		}
	}
	if i.Plan != nil {
		r.Rule = i.Plan.Policy + "/" + i.Plan.Rule
	}
	if i.ResumedStep != nil {
		r.ResumedStep, r.LostSteps = *i.ResumedStep, *i.LostSteps
	}
	if i.FirstStep != nil {
		r.RecoveredS = i.FirstStep.Sub(fault).Seconds()
	}
	if i.Outcome != incident.Recovered {
		r.fail("the incident ended as %s: %s", i.Outcome, i.Reason)
	}
}

const barAt = 26 // columns before a phase's bar

// restarts says how the gang was brought back, by the incident's word for it.
var restarts = map[string]string{"launcher": "the launcher restarted the ranks", "recreate": "every pod was replaced"}

func (r Result) write(w io.Writer) {
	verdict := "HEALED"
	if !r.OK {
		verdict = "NOT HEALED"
	}
	columns := incident.Columns(w)
	p := func(format string, a ...any) { fmt.Fprintln(w, incident.Fold(fmt.Sprintf(format, a...), columns, 4)) }
	p("\n%s  %s on %s, rank %d", verdict, r.Fault, r.FaultyNode, r.Rank)
	for _, why := range r.Why {
		p("  %s", why)
	}
	if r.RecoveredS > 0 {
		if r.Slowed != nil {
			r.Slowed.write(p)
		}
		p("  every rank stepped again %.2f s after the fault, from the checkpoint of step %d; steps lost: %d", r.RecoveredS, r.ResumedStep, r.LostSteps)
		p("  %s → %s (%s), %s, rule %s, incident %s\n", r.FaultyNode, r.NewNode, r.Placement, restarts[r.Restart], r.Rule, r.Incident)
		for k, s := range r.Phases.list() {
			p("  %-12s %7.3f s  %s", phaseNames[k], s, bar(s, columns))
		}
	}
	if r.Trainer != "torch" {
		p("\n  !! STAND-IN TRAINER: no torch could be installed here, so no real training ran. Install torch and run it again.")
	}
	p("\n  Simulated: GPUs, nodes (processes on this machine), the network between them. Real: Kubernetes, NATS, %s ranks, checkpoints.", r.Trainer)
	p("  Not in these seconds: CUDA and NCCL start-up, image pulls, loading a large model.")
}

// bar is 20 marks a second, as far as there is room.
func bar(s float64, columns int) string {
	n := min(60, int(s*20+0.5))
	if columns > 0 {
		n = min(n, max(1, columns-barAt))
	}
	b := make([]rune, n)
	for k := range b {
		b[k] = '█'
	}
	return string(b)
}
