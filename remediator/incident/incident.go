// Package incident is the state machine that brings a job back: one durable record per cause, advanced step by step.
//
// A step is a function of a view: the record as stored, live state, and the time. It acts idempotently and returns a typed Result: go on,
// wait, plan again, or close. The driver applies the result in one place: it records it by compare-and-swap before the next step begins. So a
// crash at any point is resumed without doing a step twice, and a second process that believes itself the leader loses the first write it
// tries. Every wait has a reason from one table (reason.go), with a deadline at which a person is asked and one at which it is given up.
//
// Events, however late, doubled or forged, only ever open an incident or join one: what is done is decided from live state, and only with a
// grant of the ledger. The package knows Kubernetes, NATS and policy files only through the interfaces in ports.go.
package incident

import (
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/remediator/policy"
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

// How incidents end.
const (
	Recovered    Outcome = "recovered"     // every rank stepped past the checkpoint
	Quarantined  Outcome = "quarantined"   // the node was cordoned; no job ran on it
	Observed     Outcome = "observed"      // mode observe: what would have been done is in the record
	Refused      Outcome = "refused"       // a guard said no, and would not let go in time
	Resolved     Outcome = "resolved"      // a guard held it back, and it ended by itself meanwhile
	NotConfirmed Outcome = "not-confirmed" // live state did not bear the event out
	Failed       Outcome = "failed"        // tries are used up; a person is needed
	Gone         Outcome = "job-gone"      // the job ended or was deleted meanwhile
	Cancelled    Outcome = "cancelled"     // a person undid by hand what it had begun
	NotTheCause  Outcome = "not-the-cause" // the job steps again, but no faster: the node that it left was not the cause
	GaveUp       Outcome = "gave-up"       // a step could not be done in time; what it held was given back
)

// Outcomes are all of them.
var Outcomes = []Outcome{Recovered, Quarantined, Observed, Refused, Resolved, NotConfirmed, Failed, Gone, Cancelled, NotTheCause, GaveUp}

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
	// Counted is how many occurrences the rule that counts has seen, where one did.
	Counted int `json:"counted,omitempty"`
	// Unplanned says that it joined since the present plan was made, which does not cover it.
	Unplanned bool `json:"unplanned,omitempty"`
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

// Checkpoint is the outcome of the checkpoint step.
type Checkpoint struct {
	Taken bool      `json:"taken"`
	Why   string    `json:"why,omitempty"`  // why none was taken
	Save  *bus.Save `json:"save,omitempty"` // also of a round that failed after its ranks had saved: they may hold
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
	Reason   string    `json:"reason,omitempty"`   // of the outcome
	Term     int64     `json:"term,omitempty"`     // of the leader that wrote the record
	Waiting  string    `json:"waiting,omitempty"`  // what the present step waits for, in words
	Wait     *Wait     `json:"wait,omitempty"`     // the same as a reason with its times
	Furthest State     `json:"furthest,omitempty"` // the furthest state that it ever reached, in any round
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
	Path      string     `json:"path,omitempty"`  // launcher|recreate
	Round     int        `json:"round"`           // recoveries begun in this incident: 1, then one more for each fault during recovery
	Restarts  int        `json:"restarts"`        // attempts begun by this incident
	Begun     bool       `json:"begun,omitempty"` // this round has begun to stop ranks
	Attempt   int        `json:"attempt"`         // the attempt that is to step again

	Cordons     []string          `json:"cordons,omitempty"`
	Checkpoint  *Checkpoint       `json:"checkpoint,omitempty"`
	MaxStep     int64             `json:"max_step"` // furthest step any rank had completed
	Moves       []Move            `json:"moves,omitempty"`
	Strays      []string          `json:"strays,omitempty"`     // pods sent away, by UID, since they had slipped past their reservation
	Replaced    UIDs              `json:"replaced,omitempty"`   // of a recreated gang: the pods that this round replaces
	Recreated   bool              `json:"recreated,omitempty"`  // the pods of this round were all taken away; the watch may show them a moment longer
	Reserved    bool              `json:"reserved,omitempty"`   // reservations may exist
	Uncordoned  []string          `json:"uncordoned,omitempty"` // nodes that a person uncordoned since this incident cordoned them
	LossProof   map[string]string `json:"loss_proof,omitempty"` // by lost node: what proved that its processes do not run any more
	Suspended   bool              `json:"suspended,omitempty"`  // this incident suspends its job, and has not resumed it yet
	ResumedStep *int64            `json:"resumed_step,omitempty"`
	LostSteps   *int64            `json:"lost_steps,omitempty"`
	FirstStep   *time.Time        `json:"first_step,omitempty"` // when the last rank had stepped past the checkpoint
	Sighted     *Sighting         `json:"sighted,omitempty"`    // the job's step when the incident first looked
	Pace        *Pace             `json:"pace,omitempty"`       // of a statistical finding: seconds per step
	Cost        *Cost             `json:"cost,omitempty"`       // what a restart of the job costs, as it has shown

	Parent   string   `json:"parent,omitempty"`   // the incident that speaks for this one and for others of the same cause
	Domains  []Domain `json:"domains,omitempty"`  // failure domains of its node when it was opened
	Answered string   `json:"answered,omitempty"` // the last answer that its parent handed on
	Group    *Group   `json:"group,omitempty"`    // of a parent only

	Notes  []Note  `json:"notes"`
	Writes []Write `json:"writes,omitempty"`
}

const (
	maxFaults = 16
	// maxNodes bounds the nodes that a job has to leave in one incident. Each is taken in beyond maxFaults, since a node that is left out is not
	// cordoned: a rack or a pool that fails takes many nodes of one gang.
	maxNodes  = 256
	maxJoined = 64
	maxNotes  = 200
	maxWrites = 200
	// maxDecided bounds the moves that keep their decision: a record has to fit into one message.
	maxDecided = 16
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

// PodsReplaced is how many pods this round replaces: those that move, or with no launcher all of them.
func (i *Incident) PodsReplaced() int {
	if i.Path == recreatePath {
		return len(i.Replaced)
	}
	return len(i.Moves)
}

// Knows reports whether the event opened or joined this incident.
func (i *Incident) Knows(eventID string) bool {
	return slices.Contains(i.Joined, eventID) || slices.ContainsFunc(i.Faults, func(f Fault) bool { return f.EventID == eventID })
}

// reached reports whether the incident ever was as far as s, in this round or an earlier one.
func (i *Incident) reached(s State) bool { return order[i.Furthest] >= order[s] }

// acted reports whether something may have been changed: from then on the incident is brought to its end, however long it has to wait.
func (i *Incident) acted() bool { return i.reached(Approved) }

// stopped reports whether ranks of the job may have been stopped, so that the job is down until the incident is brought to its end.
func (i *Incident) stopped() bool {
	return i.Job != nil && i.Plan.Has(policy.RestartJob) && (i.Restarts > 0 || i.Suspended || i.reached(Restarted) || i.State == Placed && i.Begun)
}

// holds reports whether ranks hold after a checkpoint and wait to be moved.
func (i *Incident) holds() bool {
	return i.Job != nil && i.Checkpoint != nil && i.Checkpoint.Save != nil && (i.State == Cordoned || i.State == Checkpointed || i.State == Placed)
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
	i.State, i.StateAt, i.Waiting, i.Wait = to, at, "", nil
	if to != Closed && order[to] > order[i.Furthest] {
		i.Furthest = to
	}
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
