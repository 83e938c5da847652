package policy

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// Source is where the remediator reads a fact.
type Source string

// The sources. A fact without one is filled by nothing, and an expression over it is a load error.
const (
	FromEvent    Source = "event"
	FromNode     Source = "node"     // the node's object
	FromJob      Source = "job"      // the objects of the job and of its namespace
	FromPods     Source = "pods"     // the pods of the job
	FromIncident Source = "incident" // the open incident that the event joined
)

// Input is what `pitcrew policy simulate` needs for a fact.
type Input string

// The inputs. A fact without one is empty in a simulation.
const (
	InputEvents Input = "the events"
	InputNodes  Input = "--nodes"
)

// Fact is one thing that an expression may read.
type Fact struct {
	Path     string // in CEL
	Type     string // CEL's name of it
	Decide   Source
	Simulate Input
	About    string
}

// facts is the table of all facts: the only place that declares which of them are filled, and by what. docs/policy.md, the check of
// expressions and the tests of the remediator read it.
var facts = []Fact{
	{Path: "event.id", Decide: FromEvent, Simulate: InputEvents, About: "The same for every report of one occurrence."},
	{Path: "event.source", Decide: FromEvent, Simulate: InputEvents, About: "Who reported it, such as `//prod/node/n1/xid`."},
	{Path: "event.type", Decide: FromEvent, Simulate: InputEvents, About: "`fault` or `anomaly`."},
	{Path: "event.time", Decide: FromEvent, Simulate: InputEvents, About: "When it happened, by the clock of its source."},
	{Path: "event.onset", Decide: FromEvent, Simulate: InputEvents, About: "When the condition began."},
	{Path: "event.signal", Decide: FromEvent, Simulate: InputEvents, About: "As in a rule, such as `xid/79`."},
	{Path: "event.severity", Decide: FromEvent, Simulate: InputEvents, About: "`info`, `warning`, `critical` or `fatal`."},
	{Path: "event.advice", Decide: FromEvent, Simulate: InputEvents, About: "The action of NVIDIA's table, such as `reset-gpu`."},
	{Path: "event.count", Decide: FromEvent, Simulate: InputEvents, About: "Occurrences that this event stands for, at least 1."},
	{Path: "event.lossPerHour", Decide: FromEvent, Simulate: InputEvents, About: "GPU-seconds that a statistical finding costs the job in an hour; 0 if it reports none."},
	{Path: "event.target.cluster", Decide: FromEvent, Simulate: InputEvents, About: "The cluster."},
	{Path: "event.target.node", Decide: FromEvent, Simulate: InputEvents, About: "The node."},
	{Path: "event.target.gpu_uuid", Decide: FromEvent, Simulate: InputEvents, About: "The GPU's UUID."},
	{Path: "event.target.pci", Decide: FromEvent, Simulate: InputEvents, About: "The PCI address."},
	{Path: "event.target.mig", Decide: FromEvent, Simulate: InputEvents, About: "The MIG instance."},
	{Path: "event.target.namespace", Decide: FromEvent, Simulate: InputEvents, About: "Namespace of the pod."},
	{Path: "event.target.pod", Decide: FromEvent, Simulate: InputEvents, About: "Name of the pod."},
	{Path: "event.target.rank", Decide: FromEvent, Simulate: InputEvents, About: "The rank; -1 if the event names none."},
	{Path: "event.target.local_rank", Decide: FromEvent, Simulate: InputEvents, About: "The rank within its pod; -1 if the event names none."},
	{Path: "event.target.world_size", Decide: FromEvent, Simulate: InputEvents, About: "Ranks of the job; 0 if the event does not say."},
	{Path: "event.target.attempt", Decide: FromEvent, Simulate: InputEvents, About: "Attempt of the job; -1 if the event names none."},
	{Path: "event.cause.kind", Decide: FromEvent, Simulate: InputEvents, About: "The part of the signal before the slash."},
	{Path: "event.cause.code", Decide: FromEvent, Simulate: InputEvents, About: "The number, for Xids and SXids."},
	{Path: "event.cause.name", Decide: FromEvent, Simulate: InputEvents, About: "The name, for everything else."},
	{Path: "event.evidence.signal", Decide: FromEvent, Simulate: InputEvents, About: "What was read or measured."},
	{Path: "event.evidence.unit", Decide: FromEvent, Simulate: InputEvents, About: "Its unit."},
	{Path: "event.evidence.value", Decide: FromEvent, Simulate: InputEvents, About: "The value; 0 if there is none."},
	{Path: "event.evidence.expected", Decide: FromEvent, Simulate: InputEvents, About: "The value that was expected."},
	{Path: "event.evidence.lower", Decide: FromEvent, Simulate: InputEvents, About: "Lower bound of the expected values."},
	{Path: "event.evidence.upper", Decide: FromEvent, Simulate: InputEvents, About: "Upper bound of the expected values."},
	{Path: "event.evidence.score", Decide: FromEvent, Simulate: InputEvents, About: "How unusual it is, 0 to 1."},
	{Path: "event.evidence.window_s", Decide: FromEvent, Simulate: InputEvents, About: "The window of the measurement in seconds."},
	{Path: "event.evidence.baseline", Decide: FromEvent, Simulate: InputEvents, About: "What it was compared with."},
	{Path: "event.evidence.raw", Decide: FromEvent, Simulate: InputEvents, About: "The line or values as read."},

	{Path: "node.name", Decide: FromNode, Simulate: InputEvents, About: "The node's name."},
	{Path: "node.pool", Decide: FromNode, Simulate: InputNodes, About: "The first pool label that the node has."},
	{Path: "node.rack", Decide: FromNode, Simulate: InputNodes, About: "The first rack label that the node has, as `label=value`."},
	{Path: "node.labels", Decide: FromNode, Simulate: InputNodes, About: "Its labels."},
	{Path: "node.annotations", Decide: FromNode, Simulate: InputNodes, About: "Its annotations."},
	{Path: "node.ready", Decide: FromNode, Simulate: InputEvents, About: "Whether its condition Ready is true. A simulation takes every node as ready."},
	{Path: "node.unschedulable", Decide: FromNode, Simulate: InputEvents, About: "Whether it is cordoned, by anyone. A simulation knows its own cordons."},
	{Path: "node.quarantined", Decide: FromNode, Simulate: InputEvents, About: "Whether Pitcrew cordoned it. A simulation knows its own cordons."},

	{Path: "job.apiVersion", Decide: FromJob, Simulate: InputEvents, About: "The API of the job's object."},
	{Path: "job.kind", Decide: FromJob, Simulate: InputEvents, About: "`Job` or `JobSet`."},
	{Path: "job.namespace", Decide: FromJob, Simulate: InputEvents, About: "The job's namespace."},
	{Path: "job.name", Decide: FromJob, Simulate: InputEvents, About: "The job's name."},
	{Path: "job.uid", Decide: FromJob, Simulate: InputEvents, About: "The UID of the job's object."},
	{Path: "job.labels", Decide: FromJob, About: "Labels of the job's object."},
	{Path: "job.annotations", Decide: FromJob, About: "Annotations of the job's object."},
	{Path: "job.namespaceLabels", Decide: FromJob, About: "Labels of its namespace."},
	{Path: "job.priorityClass", Decide: FromJob, About: "`priorityClassName` of its pods."},
	{Path: "job.worldSize", Decide: FromPods, Simulate: InputEvents, About: "Ranks of the job; 0 until a rank or an event has reported it."},
	{Path: "job.attempt", Decide: FromPods, Simulate: InputEvents, About: "Attempt of the job; 0 is the first."},
	{Path: "job.restarts", Decide: FromIncident, Simulate: InputEvents, About: "Restarts that the open incident has made."},
	{Path: "job.restartCost", Decide: FromPods, Simulate: InputEvents, About: "GPU-seconds that a restart of the job costs: as its last restart and its saves took, else 2 minutes of all its ranks."},
	{Path: "job.launcher", Decide: FromPods, About: "Whether its pods run `pitcrew_torch.run`."},

	{Path: "incident.id", Decide: FromIncident, Simulate: InputEvents, About: "The open incident that the event joined; empty if none."},
	{Path: "incident.opened", Decide: FromIncident, Simulate: InputEvents, About: "When it was opened."},
	{Path: "incident.signals", Decide: FromIncident, Simulate: InputEvents, About: "Signals of all events that joined it, the cause first."},
	{Path: "incident.events", Decide: FromIncident, Simulate: InputEvents, About: "How many events joined it."},
	{Path: "incident.nodes", Decide: FromIncident, Simulate: InputEvents, About: "Its faulty nodes."},
}

// roots are the variables of an expression.
var roots = map[string]reflect.Type{
	"event": reflect.TypeFor[Event](), "node": reflect.TypeFor[Node](), "job": reflect.TypeFor[Job](), "incident": reflect.TypeFor[Incident](),
}

// Facts lists what an expression may read, with the type of each.
func Facts() []Fact { return slices.Clone(typedFacts()) }

var typedFacts = sync.OnceValue(func() []Fact {
	out := slices.Clone(facts)
	for i := range out {
		if t := typeAt(out[i].Path); t != nil {
			out[i].Type = celType(t)
		}
	}
	return out
})

// typeAt is the Go type that a path names, nil if there is none.
func typeAt(path string) reflect.Type {
	parts := strings.Split(path, ".")
	t := roots[parts[0]]
	for _, p := range parts[1:] {
		if t == nil || t.Kind() != reflect.Struct {
			return nil
		}
		t = fieldType(t, p)
	}
	return t
}

func fieldType(t reflect.Type, name string) reflect.Type {
	for i := range t.NumField() {
		if tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); tag == name {
			return t.Field(i).Type
		}
	}
	return nil
}

func celType(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "timestamp"
	case t.Kind() == reflect.Slice:
		return "list(" + celType(t.Elem()) + ")"
	case t.Kind() == reflect.Map:
		return "map(" + celType(t.Key()) + ", " + celType(t.Elem()) + ")"
	case t.Kind() == reflect.Float64:
		return "double"
	}
	return t.Kind().String()
}

// Empty lists the facts that the table declares as filled from a source but that are zero in a decision's arguments. The tests of whatever
// fills them use it: from a full cluster nothing may be empty.
func Empty(n Node, j Job, inc Incident, from ...Source) (paths []string) {
	at := map[string]reflect.Value{"node": reflect.ValueOf(n), "job": reflect.ValueOf(j), "incident": reflect.ValueOf(inc)}
	for _, f := range facts {
		root, field, _ := strings.Cut(f.Path, ".")
		v, ok := at[root]
		if !ok || !slices.Contains(from, f.Decide) {
			continue
		}
		for i := range v.NumField() {
			if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag == field && v.Field(i).IsZero() {
				paths = append(paths, f.Path)
			}
		}
	}
	return paths
}
