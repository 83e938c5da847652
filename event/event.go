// Package event is the wire schema of Pitcrew: what a finding is, how it is named and how its bytes look.
//
// An event is a CloudEvents 1.0 message in structured JSON. Its attributes carry routing, its data carries the finding.
// The package promises that the same occurrence always gets the same id, that fields it does not know survive a decode and
// encode, that a newer minor version is read and that only an unknown major version is refused. It judges nothing.
package event

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	ce "github.com/cloudevents/sdk-go/v2/event"
)

// Type is the CloudEvents type: what sort of statement an event makes. The trailing "v1" is the schema's major version.
type Type string

// The types of schema version 1.
const (
	Fault    Type = "dev.pitcrew.fault.v1"    // certain: an XID, a lost GPU, a dead rank
	Anomaly  Type = "dev.pitcrew.anomaly.v1"  // statistical
	Recovery Type = "dev.pitcrew.recovery.v1" // a condition cleared
	Incident Type = "dev.pitcrew.incident.v1" // a step of the remediator
	Canary   Type = "dev.pitcrew.canary.v1"   // of nothing: it proves that events and notices arrive, and nobody may act on it
)

var known = map[Type]bool{Fault: true, Anomaly: true, Recovery: true, Incident: true, Canary: true}

// Known reports whether this version speaks the type.
func (t Type) Known() bool { return known[t] }

// Kind returns the part of the type that subjects use: fault, anomaly, recovery, incident or canary.
func (t Type) Kind() string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(string(t), "dev.pitcrew."), ".")
	return kind
}

// Severity orders findings. Only fatal means that a job cannot go on with the target as it is.
type Severity string

// Severities in rising order.
const (
	Info     Severity = "info"
	Warning  Severity = "warning"
	Critical Severity = "critical"
	Fatal    Severity = "fatal"
)

var severityRank = map[Severity]int{Info: 1, Warning: 2, Critical: 3, Fatal: 4}

// Valid reports whether s is one of the four severities.
func (s Severity) Valid() bool { return severityRank[s] > 0 }

// AtLeast reports whether s is as severe as o. An unknown severity is below all.
func (s Severity) AtLeast(o Severity) bool { return severityRank[s] >= severityRank[o] }

// Compare is negative if s is less severe than o, 0 if equal, positive if more severe. An unknown severity is below all.
func (s Severity) Compare(o Severity) int { return severityRank[s] - severityRank[o] }

// MaxBytes bounds one encoded event; JetStream's default message limit is 1 MiB.
const MaxBytes = 256 << 10

// Event is one statement about one target.
type Event struct {
	ID      string    `json:"id"`      // deterministic, see NewID; also the JetStream message id
	Source  string    `json:"source"`  // //<cluster>/node/<node>/<receiver or detector>
	Type    Type      `json:"type"`    // what sort of statement
	Subject string    `json:"subject"` // what it is about, most specific first, see Target.Subject
	Time    time.Time `json:"time"`    // when it happened at the source, not when it was read
	Data    Data      `json:"data"`
}

// Data is the finding.
type Data struct {
	Target   Target    `json:"target"`
	Cause    Cause     `json:"cause"`
	Severity Severity  `json:"severity"`
	Advice   string    `json:"advice,omitempty"` // action bucket of the XID table
	Evidence Evidence  `json:"evidence,omitzero"`
	Onset    time.Time `json:"onset,omitzero"`
	Count    int       `json:"count,omitempty"` // occurrences folded into this event; 0 reads as 1

	Extra map[string]json.RawMessage `json:"-"` // fields of a newer minor version
}

// Target says what is concerned, as precisely as the source knows. Unknown parts are empty.
type Target struct {
	Cluster   string `json:"cluster,omitempty"`
	Node      string `json:"node,omitempty"`
	GPU       string `json:"gpu_uuid,omitempty"`
	PCI       string `json:"pci,omitempty"` // dddd:bb:dd, lower-case
	MIG       string `json:"mig,omitempty"` // <GPU instance>/<compute instance>
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"pod_uid,omitempty"`
	Job       *Job   `json:"job,omitempty"`
	Rank      *int   `json:"rank,omitempty"`
	LocalRank *int   `json:"local_rank,omitempty"`
	WorldSize int    `json:"world_size,omitempty"`
	Attempt   *int   `json:"attempt,omitempty"`
}

// Job names the workload that owns a gang.
type Job struct {
	APIVersion string `json:"api_version"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	UID        string `json:"uid,omitempty"`
}

// Cause names what was found. Kind and Name together are the signal that a policy matches.
type Cause struct {
	Kind string `json:"kind"` // xid|sxid|gpu|nvlink|nvswitch|rank|node|agent|train|anomaly|fabric|isolation|k8s|rule
	Code string `json:"code,omitempty"`
	Name string `json:"name,omitempty"`
}

// Signal is the cause as a policy names it: "xid/79", "gpu/lost", "rank/hung".
func (c Cause) Signal() string {
	if c.Code != "" {
		return c.Kind + "/" + c.Code
	}
	return c.Kind + "/" + c.Name
}

// Evidence says what was expected and what was seen.
type Evidence struct {
	Signal   string   `json:"signal,omitempty"`
	Unit     string   `json:"unit,omitempty"`
	Value    *float64 `json:"value,omitempty"`
	Expected *float64 `json:"expected,omitempty"`
	Lower    *float64 `json:"lower,omitempty"`
	Upper    *float64 `json:"upper,omitempty"`
	Score    *float64 `json:"score,omitempty"`
	WindowS  float64  `json:"window_s,omitempty"` // seconds
	Baseline string   `json:"baseline,omitempty"` // self, peers(n), class, table
	Raw      string   `json:"raw,omitempty"`      // the line or values as read

	// Of statistical findings.
	State           State     `json:"state,omitempty"`
	Shape           string    `json:"shape,omitempty"`                 // spike, shift, drift, stall, flatline, novel, absent
	Phase           string    `json:"phase,omitempty"`                 // of the training loop
	Ratio           *float64  `json:"ratio,omitempty"`                 // of the value to the expected one
	Asked           float64   `json:"asked_per_series_hour,omitempty"` // rate of false onsets that the threshold is for
	BaselineSamples int       `json:"baseline_samples,omitempty"`      // behind the baseline
	BaselineS       float64   `json:"baseline_s,omitempty"`            // its age, seconds
	DurationS       float64   `json:"duration_s,omitempty"`            // since the onset, seconds
	LostGPUSeconds  float64   `json:"gpu_seconds_lost,omitempty"`      // since the onset
	PromQL          string    `json:"promql,omitempty"`                // an expression that fires on much the same
	Samples         []Sample  `json:"samples,omitempty"`               // around the opening, oldest first, at most MaxSamples
	Signals         []Witness `json:"signals,omitempty"`               // other signals of the same target that bear it out
	Told            []string  `json:"told,omitempty"`                  // what people said of it: acknowledged, accepted
}

// MutedBy begins what is told of a finding that a person muted.
const MutedBy = "muted by "

// Muted reports whether a person has muted the finding, by the newest that is told of it.
func (v Evidence) Muted() bool {
	return slices.ContainsFunc(v.Told, func(w string) bool { return strings.HasPrefix(w, MutedBy) })
}

// State of a statistical finding.
type State string

// States. Accepted is not cleared: the level stayed, and what is judged from now on is judged against it.
const (
	StateOpen     State = "open"
	StateAccepted State = "accepted"
	StateCleared  State = "cleared"
)

// MaxSamples bounds the samples that one event carries.
const MaxSamples = 32

// Sample is one value of the signal. S is its time relative to the onset, in seconds.
type Sample struct {
	S float64 `json:"s"`
	V float64 `json:"v"`
}

// Witness is another signal that deviated with the first.
type Witness struct {
	Signal   string    `json:"signal"`
	Onset    time.Time `json:"onset"`
	State    State     `json:"state"`
	Score    float64   `json:"score"`
	Value    *float64  `json:"value,omitempty"`
	Expected *float64  `json:"expected,omitempty"`
	Unit     string    `json:"unit,omitempty"`
}

// Subject is what the target is about, most specific first: gpu, pod, job, node.
func (t Target) Subject() string {
	switch {
	case t.GPU != "":
		return "gpu/" + t.GPU
	case t.Pod != "":
		return "pod/" + t.Namespace + "/" + t.Pod
	case t.PodUID != "":
		return "pod/" + t.PodUID
	case t.Job != nil:
		return "job/" + t.Job.Namespace + "/" + t.Job.Name
	default:
		return "node/" + t.Node
	}
}

// NewID makes the deterministic id of an occurrence from what identifies it: the source, then for example boot id and
// sequence, or series and onset. Parts are length-prefixed, so ("a","bc") and ("ab","c") differ.
func NewID(source string, parts ...string) string {
	h := sha256.New()
	for _, p := range append([]string{source}, parts...) {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Source is the CloudEvents source of a component on a node.
func Source(cluster, node, component string) string {
	return "//" + cluster + "/node/" + node + "/" + component
}

// ErrMajor is wrapped by Decode for an event of a major version that this binary does not speak.
var ErrMajor = errors.New("unknown major version")

// Validate reports every fault that would make the event useless to a receiver.
func (e Event) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	need(e.ID != "", "id is empty")
	need(e.Source != "", "source is empty")
	need(known[e.Type], fmt.Sprintf("type %q is unknown", e.Type))
	need(!e.Time.IsZero(), "time is missing")
	need(e.Data.Cause.Kind != "", "cause.kind is empty")
	need(e.Data.Cause.Code != "" || e.Data.Cause.Name != "", "cause has neither code nor name")
	need(e.Data.Severity.Valid(), fmt.Sprintf("severity %q is unknown", e.Data.Severity))
	need(e.Data.Target.Node != "" || e.Data.Target.Job != nil || e.Data.Target.Pod != "", "target names no node, pod or job")
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("event %q: %w", e.ID, errors.Join(errs...))
}

// Encode gives the structured JSON form. Equal events give equal bytes.
func Encode(e Event) ([]byte, error) {
	if e.Subject == "" {
		e.Subject = e.Data.Target.Subject()
	}
	if err := e.Validate(); err != nil {
		return nil, err
	}
	c := ce.New(ce.CloudEventsVersionV1)
	c.SetID(e.ID)
	c.SetSource(e.Source)
	c.SetType(string(e.Type))
	c.SetSubject(e.Subject)
	c.SetTime(e.Time.UTC())
	if err := c.SetData("application/json", e.Data); err != nil {
		return nil, fmt.Errorf("event %q: encode data: %w", e.ID, err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("event %q: %w", e.ID, err)
	}
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("event %q: encode: %w", e.ID, err)
	}
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("event %q: %d bytes, over the bound of %d", e.ID, len(b), MaxBytes)
	}
	return b, nil
}

// Decode reads the structured JSON form. It refuses what is malformed, too large, or of an unknown major version (ErrMajor).
func Decode(b []byte) (Event, error) {
	if len(b) > MaxBytes {
		return Event{}, fmt.Errorf("decode event: %d bytes, over the bound of %d", len(b), MaxBytes)
	}
	var c ce.Event
	if err := json.Unmarshal(b, &c); err != nil {
		return Event{}, fmt.Errorf("decode event: %w", err)
	}
	e := Event{ID: c.ID(), Source: c.Source(), Type: Type(c.Type()), Subject: c.Subject(), Time: c.Time()}
	if !known[e.Type] && strings.HasPrefix(string(e.Type), "dev.pitcrew.") {
		return Event{}, fmt.Errorf("decode event %q: type %q: %w; upgrade this component", e.ID, e.Type, ErrMajor)
	}
	if err := json.Unmarshal(c.Data(), &e.Data); err != nil {
		return Event{}, fmt.Errorf("decode event %q: data: %w", e.ID, err)
	}
	if err := e.Validate(); err != nil {
		return Event{}, fmt.Errorf("decode: %w", err)
	}
	return e, nil
}

type plainData Data // without methods, so that the standard encoder does the known fields

var dataFields = func() map[string]bool {
	m := map[string]bool{}
	for _, f := range []string{"target", "cause", "severity", "advice", "evidence", "onset", "count"} {
		m[f] = true
	}
	return m
}()

// UnmarshalJSON keeps fields that this version does not know in Extra.
func (d *Data) UnmarshalJSON(b []byte) error {
	if err := json.Unmarshal(b, (*plainData)(d)); err != nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	d.Extra = nil
	for k, v := range all {
		if !dataFields[k] {
			if d.Extra == nil {
				d.Extra = map[string]json.RawMessage{}
			}
			d.Extra[k] = v
		}
	}
	return nil
}

// MarshalJSON writes the known fields in their order and then Extra, sorted by name.
func (d Data) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(plainData(d))
	if err != nil || len(d.Extra) == 0 {
		return b, err
	}
	x, err := json.Marshal(d.Extra)
	if err != nil {
		return nil, err
	}
	b[len(b)-1] = ','
	return append(b, x[1:]...), nil
}
