package storm

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pitcrew/pitcrew/bus"
)

const (
	quarantineTaint = "pitcrew.dev/quarantine"
	reservedTaint   = "pitcrew.dev/reserved"
)

// record is the part of an incident's record that says what became of its nodes. The benchmark reads the records of several versions, so
// it reads the stored form and not the remediator's own type.
type record struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
	Waiting string `json:"waiting"`
	Wait    struct {
		Reason string `json:"reason"`
	} `json:"wait"`
	HeldAt  time.Time `json:"held_at"`
	Opened  time.Time `json:"opened"`
	Cordons []string  `json:"cordons"`
	Faults  []struct {
		EventID string `json:"event_id"`
		Node    string `json:"node"`
	} `json:"faults"`
}

// guardReason begins the typed reason of a wait for a guard.
const guardReason = "guard/"

// refusal is why an incident leaves its nodes as they are, or empty when it says nothing of that. A wait for something that comes after
// the cordon, such as a free node, is no refusal.
func (r *record) refusal() string {
	switch {
	case r.State == "closed" && r.Outcome != "recovered" && r.Outcome != "quarantined":
		return r.Outcome + ": " + r.Reason
	case r.State != "closed" && r.Waiting != "" && (!r.HeldAt.IsZero() || strings.HasPrefix(r.Wait.Reason, guardReason)):
		return r.Waiting
	}
	return ""
}

// settled reports that nothing more happens to the incident soon.
func (r *record) settled() bool { return r.State == "closed" || r.Waiting != "" }

// verdicts watches what becomes of the nodes that failed.
type verdicts struct {
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu          sync.Mutex
	failed      map[string]time.Time // when
	quarantined map[string]time.Time
	refused     map[string]time.Time
	why         map[string]string
	incidents   map[string]record
	stored      map[string]json.RawMessage // the whole record of each incident
}

// watchVerdicts returns when both watches have begun.
func watchVerdicts(ctx context.Context, kube kubernetes.Interface, b *bus.Bus) (*verdicts, error) {
	ctx, stop := context.WithCancel(ctx)
	v := &verdicts{stop: stop, failed: map[string]time.Time{}, quarantined: map[string]time.Time{}, refused: map[string]time.Time{},
		why: map[string]string{}, incidents: map[string]record{}, stored: map[string]json.RawMessage{}}
	list, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0", Limit: 1})
	if err != nil {
		stop()
		return nil, err
	}
	nodes, err := kube.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		stop()
		return nil, err
	}
	v.ended.Go(func() {
		for e := range nodes.ResultChan() {
			if n, ok := e.Object.(*corev1.Node); ok && tainted(n, quarantineTaint) {
				v.sawQuarantine(n.Name, time.Now())
			}
		}
	})
	v.ended.Go(func() { <-ctx.Done(); nodes.Stop() })
	v.ended.Go(func() {
		_ = bus.NewBucket[json.RawMessage](b, bus.IncidentBucket).Watch(ctx, nil, func(c bus.Change[json.RawMessage]) {
			var r record
			if !c.Deleted && json.Unmarshal(c.Value, &r) == nil {
				v.sawRecord(r, c.Value, time.Now())
			}
		})
	})
	return v, nil
}

func (v *verdicts) close() { v.stop(); v.ended.Wait() }

func tainted(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

func (v *verdicts) sawQuarantine(node string, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, known := v.quarantined[node]; !known {
		v.quarantined[node] = at
	}
}

func (v *verdicts) sawRecord(r record, stored json.RawMessage, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.incidents[r.ID], v.stored[r.ID] = r, stored
	why := r.refusal()
	if why == "" {
		return
	}
	for _, f := range r.Faults {
		if _, known := v.refused[f.Node]; !known && f.Node != "" && !slices.Contains(r.Cordons, f.Node) {
			v.refused[f.Node], v.why[f.Node] = at, why
		}
	}
}

func (v *verdicts) fail(node string, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failed[node] = at
}

// tally is how the failed nodes stand.
type tally struct {
	took        []float64 // seconds from failure to verdict of those that have one, sorted
	quarantined int
	refused     int
	healthy     int      // nodes that did not fail and were quarantined
	open        []string // without a verdict, sorted
	reasons     map[string]int
	incidents   int
	unsettled   int
}

func (v *verdicts) tally() (t tally) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t.reasons = map[string]int{}
	for node, at := range v.failed {
		q, held := v.quarantined[node]
		r, refused := v.refused[node]
		switch {
		case held:
			if refused && r.Before(q) { // refused first, taken up later: the first answer counts
				q = r
			}
			t.quarantined++
			t.took = append(t.took, max(0, q.Sub(at).Seconds()))
		case refused:
			t.refused++
			t.reasons[reasonWord(v.why[node])]++
			t.took = append(t.took, max(0, r.Sub(at).Seconds()))
		default:
			t.open = append(t.open, node)
		}
	}
	for node := range v.quarantined {
		if _, failed := v.failed[node]; !failed {
			t.healthy++
		}
	}
	slices.Sort(t.took)
	slices.Sort(t.open)
	t.incidents = len(v.incidents)
	for _, r := range v.incidents {
		if !r.settled() {
			t.unsettled++
		}
	}
	return t
}

// reasonWord is the part of a reason that does not differ from node to node.
func reasonWord(why string) string {
	for _, end := range []string{";", ", until", " ("} {
		why, _, _ = strings.Cut(why, end)
	}
	if words := strings.Fields(why); len(words) > 8 {
		why = strings.Join(words[:8], " ")
	}
	return why
}

// save writes the records of all incidents to a file, for whoever wants to know why a figure is what it is.
func (v *verdicts) save(path string) error {
	v.mu.Lock()
	raw, err := json.Marshal(v.stored)
	v.mu.Unlock()
	if err != nil {
		return err
	}
	return writeFile(path, raw)
}
