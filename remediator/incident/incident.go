// Package incident is the state machine that brings a job back: one durable record per cause, advanced step by step.
//
// Each step reads live state, acts idempotently, and is recorded by compare-and-swap before the next begins; so a crash at any
// point is resumed without doing a step twice, and a second process that believes itself the leader loses the first write it
// tries. Events, however late, doubled or forged, only ever open an incident or join one: what is done is decided from live
// state. The package knows Kubernetes, NATS and policy files only through the interfaces in ports.go.
package incident

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/placement"
)

// State is the last step that is done and recorded.
type State string

// States in order. An incident is in exactly one.
const (
	Detected     State = "detected"
	Correlated   State = "correlated"
	Planned      State = "planned"
	Approved     State = "approved"
	Cordoned     State = "cordoned"
	Checkpointed State = "checkpointed"
	Placed       State = "placed"
	Restarted    State = "restarted"
	Resumed      State = "resumed"
	Verified     State = "verified"
	Closed       State = "closed"
)

// order is how far a state is on the way.
var order = map[State]int{
	Detected: 1, Correlated: 2, Planned: 3, Approved: 4, Cordoned: 5, Checkpointed: 6, Placed: 7, Restarted: 8, Resumed: 9, Verified: 10, Closed: 11,
}

// Ways to bring a gang back.
const (
	launcherPath = "launcher" // survivors stay, and only faulty pods move
	recreatePath = "recreate" // every pod is replaced
)

// nodeLost is the signal of a node that no agent and no kubelet answers for.
const nodeLost = "node/lost"

// Outcome says how a closed incident ended.
type Outcome string

// Outcomes.
const (
	Recovered    Outcome = "recovered"     // every rank stepped past the checkpoint
	Quarantined  Outcome = "quarantined"   // the node was cordoned; no job ran on it
	Observed     Outcome = "observed"      // mode observe: what would have been done is in the record
	Refused      Outcome = "refused"       // a guard said no, and would not let go in time
	Resolved     Outcome = "resolved"      // a guard held it back, and it ended by itself meanwhile
	NotConfirmed Outcome = "not-confirmed" // live state did not bear the event out
	Failed       Outcome = "failed"        // tries are used up; a person is needed
	Gone         Outcome = "job-gone"      // the job ended or was deleted meanwhile
)

// Fault is one faulty thing of the incident.
type Fault struct {
	EventID string         `json:"event_id"`
	Signal  string         `json:"signal"`
	Sev     event.Severity `json:"severity"`
	At      time.Time      `json:"at"`
	Node    string         `json:"node"`
	GPU     string         `json:"gpu,omitempty"`
	PodUID  string         `json:"pod_uid,omitempty"`
	Rank    *int           `json:"rank,omitempty"`
	Attempt *int           `json:"attempt,omitempty"`
	// Moves says that the policy takes the job's pod off this node (its rule cordons).
	Moves bool `json:"moves"`
	// Usable says that the rank there can still step and save.
	Usable bool        `json:"usable"`
	Event  event.Event `json:"event"`
	Seen   time.Time   `json:"seen"` // when it reached us as holding, by our clock
}

// Note is one line of the incident's history.
type Note struct {
	At    time.Time `json:"at"`
	State State     `json:"state"`
	TookS float64   `json:"took_s,omitempty"` // seconds since the previous state
	Text  string    `json:"text"`
}

// Write is one change made to the cluster.
type Write struct {
	At     time.Time `json:"at"`
	Verb   string    `json:"verb"`
	Object string    `json:"object"`
	UID    string    `json:"uid,omitempty"`
	TookS  float64   `json:"took_s"`
	Error  string    `json:"error,omitempty"`
}

// Plan is what the chosen rule asks for.
type Plan struct {
	Policy       string        `json:"policy"`
	Rule         string        `json:"rule"`
	Mode         string        `json:"mode"` // observe|approve|enforce
	Cordon       bool          `json:"cordon"`
	Checkpoint   bool          `json:"checkpoint"`
	Restart      bool          `json:"restart"`
	Placement    string        `json:"placement"` // equivalent|same-node|any
	MaxTierLoss  int           `json:"max_tier_loss"`
	FastReplace  bool          `json:"fast_replace"`
	MaxPerJob    int           `json:"max_per_job"`
	VerifyWithin time.Duration `json:"verify_within"`
	Notify       bool          `json:"notify,omitempty"`
	// Recommend lists steps that nothing here can carry out, for a person.
	Recommend []string `json:"recommend,omitempty"`
	// NeedsApproval: a person must say yes before anything is changed.
	NeedsApproval bool `json:"needs_approval,omitempty"`
	// TakeUpWithin is how long the incident may be held back by a guard, or only observed, and still be taken up; 0: not at all.
	TakeUpWithin time.Duration `json:"take_up_within,omitempty"`
	// Judgement is the whole path of the decision, as `explain` prints it.
	Judgement json.RawMessage `json:"judgement,omitempty"`
}

// Checkpoint is the outcome of the checkpoint step.
type Checkpoint struct {
	Taken bool      `json:"taken"`
	Why   string    `json:"why,omitempty"` // why none was taken
	Save  *bus.Save `json:"save,omitempty"`
}

// Move is one pod that is replaced.
type Move struct {
	Index    int    `json:"index"`
	OldPod   string `json:"old_pod"`
	OldUID   string `json:"old_uid"`
	From     string `json:"from"`
	To       string `json:"to"` // empty: the scheduler's choice
	NewPod   string `json:"new_pod,omitempty"`
	NewUID   string `json:"new_uid,omitempty"`
	TierLoss int    `json:"tier_loss"`
	// Decision names every node considered and why it was not taken.
	Decision *placement.Decision `json:"decision,omitempty"`
}

// Incident is the durable record. Its JSON form is the contract with the CLI.
type Incident struct {
	ID       string    `json:"id"`
	Cluster  string    `json:"cluster"`
	State    State     `json:"state"`
	Outcome  Outcome   `json:"outcome,omitempty"`
	Reason   string    `json:"reason,omitempty"`  // of the outcome
	Waiting  string    `json:"waiting,omitempty"` // what the present step waits for
	Opened   time.Time `json:"opened"`
	StateAt  time.Time `json:"state_at"`
	ClosedAt time.Time `json:"closed_at,omitzero"`

	Faults   []Fault         `json:"faults"`           // the first opened the incident
	Replan   bool            `json:"replan,omitempty"` // a fault joined that the present plan does not cover
	Joined   []string        `json:"joined,omitempty"`
	Plan     *Plan           `json:"plan,omitempty"`
	Guards   []guard.Verdict `json:"guards,omitempty"`
	Approval string          `json:"approval,omitempty"` // approved|rejected by whom
	HeldAt   time.Time       `json:"held_at,omitzero"`   // when a guard first held it back before anything was done
	TakenUp  time.Time       `json:"taken_up,omitzero"`  // when no guard did any more, or a policy acted that had only observed

	Job       *event.Job `json:"job,omitempty"`
	WorldSize int        `json:"world_size,omitempty"`
	NProc     int        `json:"nproc,omitempty"`
	Path      string     `json:"path,omitempty"` // launcher|recreate
	Round     int        `json:"round"`          // recoveries begun in this incident: 1, then one more for each fault during recovery
	Restarts  int        `json:"restarts"`       // attempts begun by this incident
	Attempt   int        `json:"attempt"`        // the attempt that is to step again

	Cordons     []string    `json:"cordons,omitempty"`
	Checkpoint  *Checkpoint `json:"checkpoint,omitempty"`
	MaxStep     int64       `json:"max_step"` // furthest step any rank had completed
	Moves       []Move      `json:"moves,omitempty"`
	Strays      []string    `json:"strays,omitempty"`    // pods sent away, by UID, since they had slipped past their reservation
	Suspended   bool        `json:"suspended,omitempty"` // this incident suspends its job, and has not resumed it yet
	ResumedStep *int64      `json:"resumed_step,omitempty"`
	LostSteps   *int64      `json:"lost_steps,omitempty"`
	FirstStep   *time.Time  `json:"first_step,omitempty"` // when the last rank had stepped past the checkpoint

	Notes  []Note  `json:"notes"`
	Writes []Write `json:"writes,omitempty"`
}

const (
	maxFaults = 16
	maxJoined = 64
	maxNotes  = 200
	maxWrites = 200
)

// Open reports whether the incident still has steps to do.
func (i *Incident) Open() bool { return i.State != Closed }

// FaultyNodes are the nodes that the job must leave, in order of their faults.
func (i *Incident) FaultyNodes() []string {
	var out []string
	for _, f := range i.Faults {
		if f.Moves && f.Node != "" && !slices.Contains(out, f.Node) {
			out = append(out, f.Node)
		}
	}
	return out
}

// Knows reports whether the event opened or joined this incident.
func (i *Incident) Knows(eventID string) bool {
	return slices.Contains(i.Joined, eventID) || slices.ContainsFunc(i.Faults, func(f Fault) bool { return f.EventID == eventID })
}

// reached reports whether the incident ever was as far as s, in this round or an earlier one.
func (i *Incident) reached(s State) bool {
	return slices.ContainsFunc(i.Notes, func(n Note) bool { return n.State != Closed && order[n.State] >= order[s] })
}

// acted reports whether something may have been changed: from then on the incident is brought to its end, however long it has to wait.
func (i *Incident) acted() bool { return i.reached(Approved) }

// holds reports whether ranks hold after a checkpoint and wait to be moved.
func (i *Incident) holds() bool {
	return i.Job != nil && i.Checkpoint != nil && i.Checkpoint.Taken && (i.State == Checkpointed || i.State == Placed)
}

// move is the last one of the pod with this index.
func (i *Incident) move(index int) (Move, bool) {
	k := slices.IndexFunc(i.Moves, func(m Move) bool { return m.Index == index })
	if k < 0 {
		return Move{}, false
	}
	return i.Moves[k], true
}

func (i *Incident) note(at time.Time, text string) {
	i.append(Note{At: at, State: i.State, Text: text})
}

// append keeps the beginning and the end of a long story: guards read from it what was done, a person what happened last.
func (i *Incident) append(n Note) {
	if len(i.Notes) >= maxNotes {
		i.Notes = slices.Delete(i.Notes, maxNotes/2, maxNotes/2+1)
	}
	i.Notes = append(i.Notes, n)
}

// advance records a step. Even one that took no measurable time, or began before the clock was set back, is told from a mere note.
func (i *Incident) advance(at time.Time, to State, text string) {
	took := max(at.Sub(i.StateAt), time.Nanosecond).Seconds()
	i.State, i.StateAt, i.Waiting = to, at, ""
	i.append(Note{At: at, State: to, TookS: took, Text: text})
}

func (i *Incident) close(at time.Time, o Outcome, reason string) {
	i.Outcome, i.Reason, i.ClosedAt = o, reason, at
	i.advance(at, Closed, string(o)+": "+reason)
}

// join records an event that says nothing new about what to do.
func (i *Incident) join(e event.Event) {
	if len(i.Joined) < maxJoined && !i.Knows(e.ID) {
		i.Joined = append(i.Joined, e.ID)
	}
}
