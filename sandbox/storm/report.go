package storm

import (
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Goals that are the same for each case.
const (
	goalCPU      = 0.007 // seconds an incident
	goalRSS      = 300   // MiB
	goalRequests = 12    // an incident

	leastQuarantined = 0.8 // of the failed nodes, or of what the breaker allows
)

// Report is the file that the benchmark writes.
type Report struct {
	Cases       []Case  `json:"cases"`
	Nodes       int     `json:"nodes"`
	Gangs       int     `json:"gangs"`
	Pods        int     `json:"pods"`
	Remediators int     `json:"remediators"`
	Rate        int     `json:"rate"`       // events a second of events-5000
	DurationS   float64 `json:"duration_s"` // of events-5000
	Machine     string  `json:"machine"`
}

// Case is what one case showed. A node without a verdict when the case's time was up counts in the percentiles with that time.
type Case struct {
	Name        string  `json:"case"`
	Nodes       int     `json:"nodes"`
	Failed      int     `json:"failed"`
	P50         float64 `json:"p50_s"`
	P95         float64 `json:"p95_s"`
	Last        float64 `json:"last_s"`
	CPU         float64 `json:"cpu_s_per_incident"`
	RSS         float64 `json:"rss_mib"` // of the larger process, from the storm on
	Requests    float64 `json:"api_requests_per_incident"`
	Events      int64   `json:"events"`      // published by nodes
	EventsLost  int64   `json:"events_lost"` // never judged, or dropped as stale
	Unaccounted int     `json:"unaccounted"` // failed nodes neither quarantined nor refused with a reason
	Incidents   int     `json:"incidents"`
	Quarantined int     `json:"quarantined"`
	Refused     int     `json:"refused"`
	Healthy     int     `json:"healthy_quarantined"` // nodes that did not fail
	Breaker     int     `json:"breaker,omitempty"`   // nodes that may be quarantined; absent: no bound
	WindowS     float64 `json:"window_s"`            // in which processor time and requests were counted
	CPUTotal    float64 `json:"cpu_s"`               // of both processes in the window, idle use included
	CPUIdle     float64 `json:"cpu_idle_cores"`      // of both processes before the storm; taken off cpu_s_per_incident
	CPUPerNode  float64 `json:"cpu_s_per_failed_node"`
	Unsettled   int     `json:"incidents_unsettled"` // still at work when the window ended
	BacklogMost uint64  `json:"backlog_max"`         // events not yet delivered to the remediator
	GoalLast    float64 `json:"goal_last_s"`

	RequestsByVerb map[string]float64 `json:"api_requests_by_verb"`     // an incident; without leader election and watches
	RequestsByKind map[string]int     `json:"api_requests_by_resource"` // in all, leader election and watches included
	RefusedByKind  map[string]int     `json:"api_refused_by_resource"`  // answers of 400 and above, with their code
	LostBy         map[string]float64 `json:"events_lost_by,omitempty"`
	Noted          map[string]float64 `json:"events_noted,omitempty"`
	Reasons        map[string]int     `json:"refused_by_reason,omitempty"`
	Open           []string           `json:"unaccounted_nodes,omitempty"` // the first of them
}

// stormCPU is the CPU time, in seconds, that the storm cost. If the idle share is more than all that was used, it was measured while the
// processes still settled: nothing is subtracted then, since 0 would meet every goal.
func (m measured) stormCPU() float64 {
	if own := m.cpu - m.idle*m.window.Seconds(); own > 0 {
		return own
	}
	return m.cpu
}

// result computes a case's figures.
func (m measured) result(s *scenario) Case {
	took := slices.Clone(m.took)
	for range m.open {
		took = append(took, math.Max(m.o.Limit.Seconds(), last(took)))
	}
	incidents := float64(max(1, m.incidents))
	c := Case{
		Name: s.name, Nodes: len(m.fleet.nodes), Failed: m.failed, P50: quantile(took, .5), P95: quantile(took, .95), Last: last(took),
		CPU: round(m.stormCPU()/incidents, 4), RSS: round(m.rss, 0), Events: m.events, Unaccounted: len(m.open), Incidents: m.incidents,
		Quarantined: m.quarantined, Refused: m.refused, Healthy: m.healthy, WindowS: round(m.window.Seconds(), 1), CPUTotal: round(m.cpu, 2), CPUIdle: round(m.idle, 3),
		CPUPerNode: round(m.stormCPU()/float64(max(1, m.failed)), 4), Unsettled: m.unsettled, BacklogMost: m.backlogMost, GoalLast: s.last,
		RequestsByVerb: map[string]float64{}, RequestsByKind: map[string]int{}, RefusedByKind: map[string]int{}, LostBy: m.lost, Noted: m.notes, Reasons: m.reasons,
		Open: slices.Clip(m.open[:min(len(m.open), 10)]),
	}
	if s.breaker != unlimited {
		c.Breaker = s.breaker
	}
	for _, n := range m.lost {
		c.EventsLost += int64(n)
	}
	total := 0
	for r, n := range m.requests {
		if r.code != 0 {
			c.RefusedByKind[r.String()] += n
			continue
		}
		c.RequestsByKind[r.String()] += n
		if r.resource != electionLease && r.verb != "watch" {
			c.RequestsByVerb[r.verb] += float64(n)
			total += n
		}
	}
	for verb, n := range c.RequestsByVerb {
		c.RequestsByVerb[verb] = round(n/incidents, 2)
	}
	c.Requests = round(float64(total)/incidents, 2)
	return c
}

// verdict is a goal with what was reached.
type verdict struct {
	what, sign   string
	goal, figure float64
	met          bool
}

func (c Case) verdicts() []verdict {
	most := func(what string, goal, figure float64) verdict {
		return verdict{what, "<=", goal, figure, figure <= goal}
	}
	out := []verdict{
		most("last node quarantined or refused, s", c.GoalLast, c.Last),
		most("nodes unaccounted", 0, float64(c.Unaccounted)),
		most("healthy nodes quarantined", 0, float64(c.Healthy)),
		most("events lost", 0, float64(c.EventsLost)),
		most("CPU an incident, s", goalCPU, c.CPU),
		most("memory, MiB", goalRSS, c.RSS),
		most("API requests an incident", goalRequests, c.Requests),
	}
	// To refuse every node would meet the goals above, too. A few refusals are right: a gang that lost several nodes has its restarts limited.
	expected := c.Failed
	if c.Breaker > 0 {
		expected = min(expected, c.Breaker)
	}
	least := math.Ceil(leastQuarantined * float64(expected))
	out = append(out, verdict{"failed nodes quarantined", ">=", least, float64(c.Quarantined), float64(c.Quarantined) >= least})
	if c.Breaker > 0 {
		out = append(out, most("nodes quarantined", float64(c.Breaker), float64(c.Quarantined+c.Healthy)))
	}
	return out
}

// Missed lists the goals that a case missed.
func (c Case) Missed() []string {
	var out []string
	for _, v := range c.verdicts() {
		if !v.met {
			out = append(out, v.what)
		}
	}
	return out
}

func (c Case) String() string {
	var verbs []string
	for _, verb := range slices.Sorted(maps.Keys(c.RequestsByVerb)) {
		verbs = append(verbs, fmt.Sprintf("%s %.1f", verb, c.RequestsByVerb[verb]))
	}
	return fmt.Sprintf("  %d failed: %d quarantined, %d refused, %d unaccounted; p50 %.2f s, p95 %.2f s, last %.2f s; %d incidents, %.4f CPU-s and %.1f API requests each (%s); %.0f MiB; %d events, %d lost",
		c.Failed, c.Quarantined, c.Refused, c.Unaccounted, c.P50, c.P95, c.Last, c.Incidents, c.CPU, c.Requests, strings.Join(verbs, ", "), c.RSS, c.Events, c.EventsLost)
}

// Print writes goal and figure of each case as a table. It reports whether every goal was met.
func (r Report) Print(w io.Writer) (met bool) {
	met = true
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "case\twhat\tgoal\tfigure\t")
	for _, c := range r.Cases {
		for _, v := range c.verdicts() {
			word := ""
			if !v.met {
				met, word = false, "missed"
			}
			fmt.Fprintf(t, "%s\t%s\t%s %.4g\t%.4g\t%s\n", c.Name, v.what, v.sign, v.goal, v.figure, word)
		}
	}
	_ = t.Flush()
	return met
}

// quantile of sorted values, the nearest rank; 0 of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return round(sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)], 3)
}

func last(sorted []float64) float64 { return quantile(sorted, 1) }

func round(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}

func machine() string {
	return fmt.Sprintf("%s/%s, %d CPUs, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly))
}
