package incident

import (
	"context"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Cluster is what the machine needs of Kubernetes; *cluster.Cluster is one. Every method is idempotent, or refuses when the
// object is no longer the one meant.
type Cluster interface {
	GangsAt(ctx context.Context, t event.Target) ([]cluster.Gang, error)
	JobsAt(t event.Target) []string
	Gang(ctx context.Context, job event.Job) (cluster.Gang, error)
	Node(name string) (*fleet.Node, error)
	FleetWithout(podUIDs ...string) []*fleet.Node
	Wakes(jobUID string, helps func(*fleet.Node) bool) (woken <-chan struct{}, cancel func())

	Cordon(ctx context.Context, node, incident string) (cluster.Cordoned, error)
	Uncordon(ctx context.Context, node, incident string) (cluster.Cordoned, error)
	SetCondition(ctx context.Context, node string, healthy bool, reason, message string) error
	NodeRef(name string) cluster.Ref
	Event(ctx context.Context, about cluster.Ref, level, reason, message string) error
	Reserve(ctx context.Context, r cluster.Reservation) error
	WaitReservationSeen(ctx context.Context, r cluster.Reservation) error
	Release(ctx context.Context, incident string) error
	MayReplace(ctx context.Context, pods []cluster.Member, o cluster.RecreateOptions) error
	MayRecreate(ctx context.Context, g cluster.Gang, o cluster.RecreateOptions) error
	ReplacePod(ctx context.Context, m cluster.Member, o cluster.ReplaceOptions) (cluster.Outcome, error)
	Unsuspend(ctx context.Context, g cluster.Gang, incident string) error
	RecreateGang(ctx context.Context, g cluster.Gang, o cluster.RecreateOptions) (cluster.Recreation, error)
	ReadBack(ctx context.Context, m cluster.Member, reserved string, equivalent func(node string) bool, o cluster.ReplaceOptions) (cluster.Landing, error)
	ProbeKubelet(ctx context.Context, node string) error
	HoldJob(ctx context.Context, g cluster.Gang, incident, why string) error
}

// Checkpointer saves a gang together and reads its ranks; *checkpoint.Coordinator is one.
type Checkpointer interface {
	Save(ctx context.Context, q checkpoint.Request) (bus.Save, error)
	Observe(ctx context.Context, members []checkpoint.Member) (checkpoint.Gang, map[string]error)
	Release(ctx context.Context, members []checkpoint.Member, s bus.Save) error
}

// Judge decides by policy, without side effects.
type Judge interface {
	// Plan is what policy says of the event, with the whole decision; nil when no rule acts on it.
	Plan(e event.Event, f Facts) (*Plan, policy.Judgement)
	// Reach bounds what Plan may say of the event, whatever the facts are: whether a rule may act on it, and whether policy may want people
	// to be told of it. It is asked of every event, before any fact is collected.
	Reach(e event.Event) (acts, tells bool)
	// Guards judges the plan against the present state of things and the ledger's book; all must allow. The ledger calls it in its critical
	// section, so it asks no server.
	Guards(p *Plan, f Facts, b *ledger.Book) []guard.Verdict
	// MaxEventAge bounds the age of an event that may act.
	MaxEventAge() time.Duration
}

// Conditions is what nodes last said of themselves.
type Conditions interface {
	// Unfit is why no job is to be sent to the node: a critical condition of its hardware that its source measures and that still stands.
	// Empty when there is none.
	Unfit(node string) string
	// Standing is whether what an event said of a node still holds, and since when or why not.
	Standing(e event.Event) (Standing, string)
}

// Standing is what a node says now of something that it said before.
type Standing int

// The standings.
const (
	Unknown Standing = iota // there is no condition of it
	Holds                   // the condition is open, of the node's present boot, and the node's agent is heard
	Silent                  // it was open when the agent was last heard
	Ended
)

// Facts are what a judgement knows beside the event.
type Facts struct {
	Now      time.Time
	Node     *fleet.Node // nil: there is no such node
	Gang     *cluster.Gang
	Incident *Incident
	Seen     time.Time     // when the condition was last known to hold, by our clock
	Wants    []guard.Place // nodes that the plan cordons
	Cost     Cost          // of a restart of the gang's job, as far as the job has shown it
	Counted  int           // occurrences of the fault that an earlier judgment of it counted; a new leader may know fewer
}

// Claims judges by the heartbeat that rank 0 of a job leaves beside its checkpoints; *claims.Watch is one.
type Claims interface {
	// Silent is the proof that nothing of the job writes its heartbeat any more, by what its ranks on other nodes read of it now and before;
	// empty, with the reason, where there is none.
	Silent(job event.Job, live checkpoint.Gang) (proof, why string)
}

// Store keeps incidents; *bus.Bucket[Incident] is one.
type Store interface {
	Get(ctx context.Context, key string) (Incident, uint64, error)
	Put(ctx context.Context, key string, v Incident, rev uint64) (uint64, error)
	Delete(ctx context.Context, key string, rev uint64) error
	List(ctx context.Context) ([]bus.Change[Incident], error)
}

// Attempts is the bucket that says who runs what; *bus.Bucket[bus.Attempt] is one.
type Attempts interface {
	Get(ctx context.Context, key string) (bus.Attempt, uint64, error)
	Put(ctx context.Context, key string, v bus.Attempt, rev uint64) (uint64, error)
	Delete(ctx context.Context, key string, rev uint64) error
	List(ctx context.Context) ([]bus.Change[bus.Attempt], error)
}

// Seen remembers event ids past JetStream's window.
type Seen interface {
	Known(ctx context.Context, id string) (bool, error)
	Remember(ctx context.Context, id string) error
}
