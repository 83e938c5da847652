package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/sandbox"
)

// Quantiles of a set of seconds. With few samples they are order statistics: the smallest value that at least that share does
// not exceed.
type Quantiles struct {
	N    int     `json:"n"`
	P50  float64 `json:"p50_s"`
	P95  float64 `json:"p95_s"`
	Mean float64 `json:"mean_s"`
	Max  float64 `json:"max_s"`
}

func quantiles(v []float64) Quantiles {
	if len(v) == 0 {
		return Quantiles{}
	}
	v = slices.Sorted(slices.Values(v))
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	rank := func(p float64) float64 { return v[min(len(v)-1, max(0, int(p*float64(len(v))+0.999999)-1))] }
	return Quantiles{len(v), rank(0.5), rank(0.95), sum / float64(len(v)), v[len(v)-1]}
}

// Bench is the file that `make bench-recovery` writes.
type Bench struct {
	When      time.Time                       `json:"when"`
	Machine   string                          `json:"machine"`
	Simulated string                          `json:"simulated"`
	Launcher  string                          `json:"launcher"`
	N         int                             `json:"n"`
	OK        int                             `json:"ok"`
	All       Quantiles                       `json:"recovered"`
	ByFault   map[string]Quantiles            `json:"by_fault"`
	Phases    map[string]Quantiles            `json:"phases"`
	ByBoth    map[string]map[string]Quantiles `json:"phases_by_fault"`
	FullSpeed map[string]Quantiles            `json:"full_speed_by_fault"`        // of slow faults: from the fault until all ranks step at full speed
	Saved     map[string]float64              `json:"gpu_seconds_saved_per_hour"` // by slow fault, mean
	Runs      []Result                        `json:"runs"`
}

// plan cycles through faults, ranks and workload kinds so that each prefix of it is as mixed as it can be.
func plan(n int, launcher string) []Scenario {
	out := make([]Scenario, n)
	faults := healed
	for k := range out {
		fault, round := k%len(faults), k/len(faults)
		out[k] = Scenario{
			Fault: faults[fault], Rank: (fault + round) % WorldSize, Launcher: launcher,
			Workload: []string{KindJob, KindJobSet}[(fault+round/2)%2],
		}
	}
	return out
}

func bench(ctx context.Context, n int, launcher, out, dir string, progress io.Writer) (Bench, error) {
	b := Bench{When: time.Now().UTC(), Machine: machine(), Launcher: launcher, N: n,
		Simulated: "GPUs, nodes and network are simulated on one machine; control plane, NATS, gloo ranks and checkpoints are real; no CUDA, NCCL, image pull"}
	byStage := map[bool][]Scenario{}
	for _, c := range plan(n, launcher) {
		byStage[c.Slow()] = append(byStage[c.Slow()], c)
	}
	for _, slow := range []bool{false, true} {
		if len(byStage[slow]) == 0 {
			continue
		}
		if err := b.stage(ctx, byStage[slow], StageOptions{Dir: dir, JobSet: true, Auth: true, Progress: progress, Policies: Relaxed}); err != nil {
			return b, err
		}
	}
	b.summarise()
	return b, write(out, b)
}

// stage runs scenarios of one kind on a sandbox of their own.
func (b *Bench) stage(ctx context.Context, all []Scenario, o StageOptions) error {
	s, err := SetUp(ctx, all[0].on(o))
	if err != nil {
		return err
	}
	defer s.Close()
	from := len(b.Runs)
	var dirs []string
	for k, c := range all {
		r, dir := s.Try(ctx, fmt.Sprintf("run-%d", k), c)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.Runs, dirs = append(b.Runs, r), append(dirs, dir)
		state := "ok"
		if !r.OK {
			state = "FAILED: " + strings.Join(r.Why, "; ")
		}
		s.say("%3d/%d  %-16s rank %d  %-7s %6.2f s  %s", len(b.Runs), b.N, r.Fault, r.Rank, r.Workload, r.RecoveredS, state)
	}
	return s.compareLosses(ctx, all[0].world(), b.Runs[from:], dirs)
}

// Relaxed takes back the guards that a sandbox trips which is hurt again and again on purpose; an operator would repair in between.
func Relaxed(ps []policy.Policy) []policy.Policy {
	return policy.WithGuards(ps, func(g *policy.Guards) {
		g.CooldownPerNode, g.ActionBudget.Count = 0, 10_000
		g.MaxNodesQuarantined = policy.Share{Count: 100, Percent: 100}
		g.OneCause.Nodes = 0 // faults that follow each other in one rack have no common cause here
	})
}

// Try runs a scenario on a job of its own and makes the sandbox whole again. It returns the directory of the ranks' logs too.
func (s *Stage) Try(ctx context.Context, name string, c Scenario) (Result, string) {
	r := Result{Fault: string(c.Fault), Rank: c.Rank, Launcher: c.Launcher, Workload: c.Workload, Trainer: s.trainer}
	j, err := s.Submit(ctx, name, c)
	if err != nil {
		r.fail("submit: %v", err)
		return r, ""
	}
	if err := s.Reached(ctx, j, c.warm(), startsWithin); err != nil {
		r.fail("%v", err)
	} else {
		began := time.Now()
		r = s.Recover(ctx, j, c, nil)
		s.checkAudit(began, j, &r)
	}
	if err := s.Repair(ctx); err != nil {
		r.fail("repair: %v", err)
	}
	if err := s.Remove(ctx, j); err != nil {
		r.fail("remove: %v", err)
	}
	return r, j.Dir
}

// checkAudit asks the API server's own record what Pitcrew did to pods.
func (s *Stage) checkAudit(since time.Time, j *Job, r *Result) {
	log, err := ReadAudit(s.box.AuditLog(), since, j.Name)
	if err != nil {
		r.fail("audit log: %v", err)
		return
	}
	for uid, n := range log.Removed {
		if n > 1 {
			r.fail("pod %s was evicted or deleted %d times", uid, n)
		}
	}
	for _, p := range log.Strangers {
		r.fail("somebody else's pod %s was touched", p)
	}
	for _, d := range log.Doubled {
		r.fail("two pods of one index ran at once: %s", d)
	}
	if moved := r.OK && r.NewNode != r.FaultyNode; moved && len(log.Removed) == 0 {
		r.fail("the job moved, but the audit log shows no eviction: the check looked at nothing")
	}
}

// Repair does what an operator does: mend the hardware and uncordon. Pitcrew obeys and takes its taint away.
func (s *Stage) Repair(ctx context.Context) error {
	for _, n := range s.box.Nodes() {
		if err := s.box.Repair(ctx, n.Name); err != nil {
			return err
		}
		if err := s.Uncordon(ctx, n.Name); err != nil {
			return err
		}
	}
	return nil
}

// Uncordon waits until a node takes pods and nothing of Pitcrew is on it.
func (s *Stage) Uncordon(ctx context.Context, name string) error {
	nodes := s.box.Client().CoreV1().Nodes()
	return poll(ctx, 30*time.Second, func() (bool, error) {
		n, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if !n.Spec.Unschedulable {
			for _, t := range n.Spec.Taints {
				if strings.HasPrefix(t.Key, "pitcrew.dev/") {
					return false, nil // obeyed in a moment
				}
			}
			return true, nil
		}
		n.Spec.Unschedulable = false
		_, err = nodes.Update(ctx, n, metav1.UpdateOptions{})
		return false, ignoreConflict(err)
	})
}

// compareLosses runs the training of a world's size once without interruption and holds every run's losses against it.
func (s *Stage) compareLosses(ctx context.Context, world int, runs []Result, dirs []string) error {
	if s.trainer != "torch" {
		return nil
	}
	most := int64(0)
	for _, d := range dirs {
		for rank := range world {
			if last, err := lastStep(d, rank); err == nil {
				most = max(most, last)
			}
		}
	}
	s.say("comparing every loss with an uninterrupted run of %d steps", most)
	ref, err := s.reference(ctx, world, most)
	if err != nil {
		return err
	}
	for k, d := range dirs {
		if !runs[k].OK {
			continue
		}
		if why, err := differs(d, ref); err != nil {
			return err
		} else if why != "" {
			runs[k].fail("%s", why)
		}
	}
	return nil
}

func (b *Bench) summarise() {
	total, phase := map[string][]float64{}, map[string]map[string][]float64{}
	full, saved := map[string][]float64{}, map[string][]float64{}
	var all []float64
	for _, r := range b.Runs {
		if !r.OK {
			continue
		}
		b.OK++
		all = append(all, r.RecoveredS)
		total[r.Fault] = append(total[r.Fault], r.RecoveredS)
		if r.Slowed != nil {
			full[r.Fault], saved[r.Fault] = append(full[r.Fault], r.FullSpeedS), append(saved[r.Fault], r.SavedPerHour)
		}
		for _, key := range []string{"", r.Fault} {
			if phase[key] == nil {
				phase[key] = map[string][]float64{}
			}
			for k, v := range r.Phases.list() {
				phase[key][phaseNames[k]] = append(phase[key][phaseNames[k]], v)
			}
		}
	}
	b.All, b.ByFault, b.Phases, b.ByBoth = quantiles(all), map[string]Quantiles{}, map[string]Quantiles{}, map[string]map[string]Quantiles{}
	for f, v := range total {
		b.ByFault[f], b.ByBoth[f] = quantiles(v), map[string]Quantiles{}
		for p, x := range phase[f] {
			b.ByBoth[f][p] = quantiles(x)
		}
	}
	b.FullSpeed, b.Saved = map[string]Quantiles{}, map[string]float64{}
	for f := range full {
		b.FullSpeed[f], b.Saved[f] = quantiles(full[f]), quantiles(saved[f]).Mean
	}
	for p, x := range phase[""] {
		b.Phases[p] = quantiles(x)
	}
}

// Table prints medians by fault and phase, and the quantiles of the whole.
func (b Bench) Table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "fault\tn\t%s\tp50\tp95\tmean\t\n", strings.Join(phaseNames, "\t"))
	row := func(name string, q Quantiles, ph map[string]Quantiles) {
		fmt.Fprintf(w, "%s\t%d\t", name, q.N)
		for _, p := range phaseNames {
			fmt.Fprintf(w, "%.2f\t", ph[p].P50)
		}
		fmt.Fprintf(w, "%.2f\t%.2f\t%.2f\t\n", q.P50, q.P95, q.Mean)
	}
	for _, f := range healed {
		if q, ok := b.ByFault[string(f)]; ok {
			row(string(f), q, b.ByBoth[string(f)])
		}
	}
	row("all", b.All, b.Phases)
	if err := w.Flush(); err != nil {
		return err
	}
	if err := b.slowTable(out); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%d of %d ok; launcher %s; seconds, phases as medians; %s\n%s\n", b.OK, b.N, b.Launcher, b.Machine, b.Simulated)
	return err
}

// slowTable prints what slow faults cost and what moving their ranks saved.
func (b Bench) slowTable(out io.Writer) error {
	if len(b.FullSpeed) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\nslow fault\tn\tfull speed p50\tp95\tGPU-seconds saved an hour\t\n")
	for _, f := range sandbox.SlowFaults {
		if q, ok := b.FullSpeed[string(f)]; ok {
			fmt.Fprintf(w, "%s\t%d\t%.1f\t%.1f\t%.0f\t\n", f, q.N, q.P50, q.P95, b.Saved[string(f)])
		}
	}
	return w.Flush()
}

func machine() string {
	return fmt.Sprintf("%s/%s, %d cores", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
}

func write(path string, b Bench) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}
