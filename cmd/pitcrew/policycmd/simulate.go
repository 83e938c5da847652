package policycmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// unknown is what no simulation can say.
const unknown = "Not known, and assumed: namespaces have opted in; nothing was held, paused or cordoned by people; the job stood where the event says,\n" +
	"and a node for it was free. Whether a rank's fault would have been confirmed, and what the healing would have come to, is not simulated.\n"

type simulateFlags struct {
	connect.Flags
	policies              []string
	events, nodes, people string
	mode, since           string
	lasts, mends, within  time.Duration
}

// simulation is the -o json answer.
type simulation struct {
	Events    int                    `json:"events"`  // judged
	Refused   int                    `json:"refused"` // that could not be read
	Incidents []remediator.Would     `json:"incidents"`
	Compared  *remediator.Comparison `json:"compared,omitempty"`
	Warnings  []string               `json:"warnings,omitempty"` // why the answer may be emptier than the truth
	Unknown   string                 `json:"unknown"`
}

func simulate(now func() time.Time) *cobra.Command {
	f := &simulateFlags{}
	c := &cobra.Command{
		Use: "simulate --policy FILE [--since 7d | --events FILE]", Short: "Judge stored events by policies and say what would have been done",
		Long: "Judge stored events, from the bus or from a file of one event a line, by policies as the remediator would have, and print each incident that would\n" +
			"have been opened: when, where, which rule, what would have been done, and which guard stood against it. Incidents that no guard refuses are taken to\n" +
			"have acted, so that budgets, cooldowns and the breaker count them. Nothing is changed. With --compare, the answer is held against what people did.\n\n" + unknown,
		Example: "  pitcrew policy simulate --policy deploy/policies --since 7d\n" +
			"  pitcrew policy simulate --policy my.yaml --mode enforce --events week.jsonl --compare done.csv -o json",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c, now()) },
	}
	fl := c.Flags()
	f.Register(fl)
	fl.StringSliceVar(&f.policies, "policy", nil, "policy file or folder; may be given several times")
	fl.StringVar(&f.mode, "mode", "", "judge as if the policies were in this mode (observe, approve, enforce)")
	fl.StringVar(&f.since, "since", "7d", "how far back to read the bus, such as 7d or 12h")
	fl.StringVar(&f.events, "events", "", "file of events in place of the bus, one CloudEvent a line; - for standard input")
	fl.StringVar(&f.nodes, "nodes", "", "`file` of what kubectl get nodes -o json prints: the fleet and its labels; without it only nodes of events are known, and no label")
	fl.StringVar(&f.people, "compare", "", "file of what people did: CSV or JSON lines of time, node, action")
	fl.DurationVar(&f.lasts, "incident-lasts", incident.Correlation, "how long an incident is taken to be open: what comes meanwhile joins it")
	fl.DurationVar(&f.mends, "node-mends", 24*time.Hour, "how long a cordoned node is taken to stay so")
	fl.DurationVar(&f.within, "within", 30*time.Minute, "how far apart a person and Pitcrew may act on a node and still mean the same")
	if err := c.MarkFlagRequired("policy"); err != nil {
		panic(err)
	}
	return c
}

func (f *simulateFlags) run(c *cobra.Command, now time.Time) error {
	ps, err := policy.Load(f.policies...)
	if err != nil {
		return err
	}
	if f.mode != "" {
		ps = policy.WithMode(ps, policy.Mode(f.mode))
		for _, p := range ps {
			if err := p.Validate(); err != nil {
				return fmt.Errorf("--mode: %w", err)
			}
		}
	}
	var labels map[string]map[string]string
	if f.nodes != "" {
		if err := opened("nodes", f.nodes, nil, func(in io.Reader) (err error) { labels, err = remediator.ReadLabels(in); return err }); err != nil {
			return err
		}
	}
	var done []remediator.Deed
	if f.people != "" {
		if err := opened("compare", f.people, nil, func(in io.Reader) (err error) { done, err = remediator.ReadDeeds(in); return err }); err != nil {
			return err
		}
	}
	out := simulation{Unknown: unknown}
	bad := func(where string, err error) {
		out.Refused++
		fmt.Fprintf(c.ErrOrStderr(), "%s: %v\n", where, err)
	}
	var events []event.Event
	if f.events != "" {
		err = opened("events", f.events, c.InOrStdin(), func(in io.Reader) (err error) {
			events, err = event.ReadLines(in, func(line int, err error) { bad(fmt.Sprintf("%s:%d", f.events, line), err) })
			return err
		})
	} else {
		events, err = f.stored(c.Context(), now, bad)
	}
	if err != nil {
		return err
	}
	out.Events = len(events)
	out.Incidents = append([]remediator.Would{}, remediator.Simulate(events, remediator.Simulation{Policies: ps, Labels: labels, Lasts: f.lasts, Mends: f.mends})...)
	out.Warnings = f.warnings(ps, events)
	if f.people != "" {
		out.Compared = remediator.Compare(out.Incidents, done, f.within)
	}
	if f.JSON() {
		e := json.NewEncoder(c.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(out)
	}
	return out.write(c.OutOrStdout())
}

// stored reads the bus.
func (f *simulateFlags) stored(ctx context.Context, now time.Time, bad func(string, error)) (events []event.Event, err error) {
	back, err := days(f.since)
	if err != nil {
		return nil, err
	}
	err = f.Open(ctx, func(ctx context.Context, b *bus.Bus) error {
		return b.Replay(ctx, now.Add(-back), func(d bus.Delivery) {
			if d.Event.Data.Target.Node == "" && d.Gateway == "" { // as the remediator takes it
				d.Event.Data.Target.Node = d.Node
			}
			events = append(events, d.Event)
		}, bad)
	})
	return events, err
}

// days reads a duration that may be given in days.
func days(s string) (time.Duration, error) {
	if n, ok := strings.CutSuffix(s, "d"); ok {
		if d, err := strconv.ParseFloat(n, 64); err == nil && d > 0 && d < 36500 {
			return time.Duration(d * 24 * float64(time.Hour)), nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("--since %q: write it like 7d or 12h", s)
	}
	return d, nil
}

// opened gives read a file. "-" is stdin, if that is not nil. what names the file in errors.
func opened(what, name string, stdin io.Reader, read func(io.Reader) error) error {
	in := stdin
	if name != "-" || stdin == nil {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		defer f.Close()
		in = f
	}
	if err := read(in); err != nil {
		return fmt.Errorf("%s %s: %w", what, name, err)
	}
	return nil
}

// warnings name what this simulation was not given and the policies ask for: an empty answer must not look like a quiet week.
func (f *simulateFlags) warnings(ps []policy.Policy, events []event.Event) (out []string) {
	warn := func(format string, a ...any) { out = append(out, fmt.Sprintf(format, a...)) }
	if len(events) == 0 {
		if f.events != "" {
			warn("%s holds no event", f.events)
		} else {
			warn("the bus holds no event of this cluster from the last %s; if it should, check --cluster (or PITCREW_CLUSTER) and --since", f.since)
		}
	}
	for _, p := range ps {
		if f.nodes == "" && p.Spec.Mode != policy.Off && (len(p.Spec.AppliesTo.Pools) > 0 || len(p.Spec.AppliesTo.Nodes) > 0) {
			warn("policy %s applies to nodes by pool or label, and without --nodes no node has any: it took no event", p.Metadata.Name)
		}
	}
	for _, r := range policy.Readings(ps) {
		switch in := r.Fact.Simulate; {
		case in == "":
			warn("policy %s: rule %s reads %s, which is empty in a simulation", r.Policy, r.Rule, r.Fact.Path)
		case in == policy.InputNodes && f.nodes == "":
			warn("policy %s: rule %s reads %s, which is empty without %s", r.Policy, r.Rule, r.Fact.Path, in)
		}
	}
	return out
}

func (s simulation) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var errs []error
	say := func(format string, a ...any) {
		_, err := fmt.Fprintf(t, format+"\n", a...)
		errs = append(errs, err)
	}
	say("%s judged, %s would have been opened", counted(s.Events, "event"), counted(len(s.Incidents), "incident"))
	for _, w := range s.Warnings {
		say("warning: %s", w)
	}
	if len(s.Incidents) > 0 {
		say("\nTIME\tSIGNAL\tNODE\tJOB\tRULE\tDECISION\tACTIONS\tEVENTS")
	}
	for _, i := range s.Incidents {
		decision := i.Decision
		if i.Refused != "" {
			decision += ": " + i.Refused
		}
		say("%s\t%s\t%s\t%s\t%s/%s\t%s\t%s\t%d", i.Time.UTC().Format(time.RFC3339), i.Signal, i.Node, cmp.Or(i.Job, "-"), i.Policy, i.Rule, decision, strings.Join(i.Actions, ", "), i.Events)
	}
	writePrices(s.Incidents, say)
	if s.Compared != nil {
		writeComparison(s.Compared, say)
	}
	say("\n%s", strings.TrimSuffix(s.Unknown, "\n"))
	return errors.Join(append(errs, t.Flush())...)
}

// writePrices prints what statistical findings cost, and what moves for them would have cost and saved.
func writePrices(all []remediator.Would, say func(string, ...any)) {
	var sum remediator.Price
	moves, findings := 0, 0
	for _, i := range all {
		p := i.Price
		if p == nil {
			continue
		}
		if findings++; findings == 1 {
			say("\nPRICE\tSIGNAL\tJOB\tDECIDED\tGPU-HOURS LOST\tA RESTART COSTS\tSAVED")
		}
		decided := "never"
		if !p.Decided.IsZero() {
			decided = p.Decided.UTC().Format(time.RFC3339)
			moves++
			sum.Restart += p.Restart
			sum.Saved += p.Saved
		}
		sum.Lost += p.Lost
		say("%s\t%s\t%s\t%s\t%.3g\t%.3g\t%.3g", i.Time.UTC().Format(time.RFC3339), i.Signal, cmp.Or(i.Job, "-"), decided, p.Lost, p.Restart, p.Saved)
	}
	if findings > 0 {
		say("%s for %s: %.3g GPU-hours were lost, the restarts would have cost %.3g, and %.3g would have been saved", counted(moves, "move"), counted(findings, "finding"),
			sum.Lost, sum.Restart, sum.Saved)
	}
}
