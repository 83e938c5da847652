package incident

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Plan is what the chosen rule asks for: its steps as policy wrote them, and the whole decision that led to it.
type Plan struct {
	Policy string               `json:"policy"`
	Rule   string               `json:"rule"`
	Mode   policy.Mode          `json:"mode"`
	Steps  []policy.PlannedStep `json:"steps"` // those that will be done; and recommendations, which are left to a person
	// NeedsApproval: a person must agree before anything is changed, since a step, the mode or the rule of another fault says so.
	NeedsApproval bool          `json:"needs_approval,omitempty"`
	VerifyWithin  time.Duration `json:"verify_within"`
	// TakeUpWithin is how long the incident may be held back by a guard, or only observed, and still be taken up; 0: not at all.
	TakeUpWithin time.Duration `json:"take_up_within,omitempty"`
	// ApprovalWithin is how long an answer is waited for, and Deadlines how long anything else; zero: as reason.go says.
	ApprovalWithin time.Duration    `json:"approval_within,omitempty"`
	Deadlines      policy.Deadlines `json:"deadlines,omitzero"`
	// Unsteered is what happens to a replacement that the scheduler placed by its own choice on a node that is not equivalent; empty: it stays.
	Unsteered policy.Unsteered `json:"unsteered,omitempty"`
	// OneCause says when incidents of many nodes become one, with a parent.
	OneCause policy.Grouping `json:"one_cause,omitzero"`
	// Terms are what must hold before a statistical finding acts; nil: the rule and the finding have none.
	Terms *policy.Terms `json:"terms,omitempty"`
	// ByPace: the recovery is verified by the pace of the job's steps.
	ByPace bool `json:"by_pace,omitempty"`
	// Decision is the whole path of the judgment, as `explain` prints it.
	Decision json.RawMessage `json:"judgement,omitempty"`
}

// Has reports whether the plan does a step of this verb. A nil plan does nothing.
func (p *Plan) Has(v policy.Verb) bool {
	return p != nil && slices.ContainsFunc(p.Steps, func(s policy.PlannedStep) bool { return s.Do == v && !s.Recommendation })
}

// Verbs are what the plan changes, in order. Words for people are not among them.
func (p *Plan) Verbs() (out []policy.Verb) {
	for _, s := range p.Steps {
		if s.Do != policy.Notify && !s.Recommendation {
			out = append(out, s.Do)
		}
	}
	return out
}

// Disruptive counts the steps that the action budget is charged for.
func (p *Plan) Disruptive() (n int) {
	for _, v := range p.Verbs() {
		if v.Disruptive() {
			n++
		}
	}
	return n
}

// With are the options of restart-job, with what holds where the rule says nothing.
func (p *Plan) With() policy.With {
	w := policy.With{Placement: policy.Equivalent, MaxPerJob: policy.DefaultMaxPerJob}
	for _, s := range p.Steps {
		if s.Do == policy.RestartJob && s.With != nil {
			w = *s.With
		}
	}
	if w.Placement == "" {
		w.Placement = policy.Equivalent
	}
	if w.MaxPerJob == 0 {
		w.MaxPerJob = policy.DefaultMaxPerJob
	}
	return w
}

// Recommended are the steps that nothing here carries out.
func (p *Plan) Recommended() (out []string) {
	for _, s := range p.Steps {
		if s.Recommendation {
			out = append(out, string(s.Do))
		}
	}
	return out
}

// without is the plan with some verbs left out.
func (p *Plan) without(verbs ...policy.Verb) *Plan {
	out := *p
	out.Steps = slices.DeleteFunc(slices.Clone(p.Steps), func(s policy.PlannedStep) bool { return slices.Contains(verbs, s.Do) })
	return &out
}

// bringsBack reports whether the plan saves or restarts a job.
func (p *Plan) bringsBack() bool { return p.Has(policy.Checkpoint) || p.Has(policy.RestartJob) }

// onlyNode returns the plan without the steps that concern a job.
func (p *Plan) onlyNode() *Plan { return p.without(policy.Checkpoint, policy.RestartJob) }

// weight orders plans by how much they do.
func (p *Plan) weight() int {
	switch {
	case p == nil:
		return 0
	case p.Mode == policy.Observe:
		return 1
	case !p.Has(policy.Cordon):
		return 2
	}
	return 3
}

// within is how long the job may take to step again.
func (p *Plan) within() time.Duration {
	if p.VerifyWithin <= 0 {
		return time.Minute
	}
	return p.VerifyWithin
}

// wouldHave is the reason of an incident that its policy only observes.
func (p *Plan) wouldHave() string {
	return fmt.Sprintf("policy %s observes: rule %s would have acted", p.Policy, p.Rule)
}

// legacy is a plan as versions before 0.2 recorded it.
type legacy struct {
	Cordon      bool             `json:"cordon"`
	Checkpoint  bool             `json:"checkpoint"`
	Restart     bool             `json:"restart"`
	Placement   policy.Placement `json:"placement"`
	MaxTierLoss int              `json:"max_tier_loss"`
	FastReplace bool             `json:"fast_replace"`
	MaxPerJob   int              `json:"max_per_job"`
	Notify      bool             `json:"notify"`
	Recommend   []policy.Verb    `json:"recommend"`
}

// UnmarshalJSON reads a plan of this version or of an earlier one, which had no steps.
func (p *Plan) UnmarshalJSON(raw []byte) error {
	type plain Plan
	if err := json.Unmarshal(raw, (*plain)(p)); err != nil || p.Steps != nil {
		return err
	}
	var old legacy
	if err := json.Unmarshal(raw, &old); err != nil {
		return err
	}
	add := func(v policy.Verb, in bool, with *policy.With) {
		if in {
			p.Steps = append(p.Steps, policy.PlannedStep{Step: policy.Step{Do: v, With: with}, NeedsApproval: p.NeedsApproval && v != policy.Notify})
		}
	}
	add(policy.Cordon, old.Cordon, nil)
	add(policy.Checkpoint, old.Checkpoint, nil)
	add(policy.RestartJob, old.Restart, &policy.With{Placement: old.Placement, MaxTierLoss: old.MaxTierLoss, MaxPerJob: old.MaxPerJob, FastReplace: old.FastReplace})
	add(policy.Notify, old.Notify, nil)
	for _, v := range old.Recommend {
		p.Steps = append(p.Steps, policy.PlannedStep{Step: policy.Step{Do: v}, Recommendation: true})
	}
	return nil
}
