package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/sandbox"
)

// Workload kinds.
const (
	KindJob    = "job"
	KindJobSet = "jobset"
)

// The demo's job.
const (
	WorldSize = 2
	Namespace = "train"
	// PeerWorld is the size of the job that a slow fault hits: to compare ranks takes four.
	PeerWorld = 4
)

const (
	stepSeconds  = 0.1
	ckptEvery    = 20
	warmSteps    = 30  // before the fault: the periodic checkpoint and the learning of a pace lie behind
	learnSteps   = 100 // the same before a slow fault: the gateway has learned how the ranks differ
	startsWithin = 2 * time.Minute
	healsWithin  = 2 * time.Minute
	settleSteps  = 15 // after recovery, so that the loss curve can be compared past the resume
	pacedSteps   = 40 // the same after a slow fault, so that the pace can be measured
	opensWithin  = 30 * time.Second
	slowWithin   = 2 * time.Minute // beyond both after a slow fault: a comparison takes longer the busier the machine is
)

// Scenario is one thing to try.
type Scenario struct {
	Fault    sandbox.FaultKind
	Rank     int
	Launcher string
	Workload string
	Pods     int               // 0: PeerWorld for a slow fault, else WorldSize
	Env      map[string]string // more for the trainer
}

// Slow reports whether the fault slows a rank and ends none.
func (c Scenario) Slow() bool { return slices.Contains(sandbox.SlowFaults, c.Fault) }

// warm is the step at which the fault hits.
func (c Scenario) warm() int64 {
	if c.Slow() {
		return learnSteps
	}
	return warmSteps
}

func (c Scenario) settle() int64 {
	if c.Slow() {
		return pacedSteps
	}
	return settleSteps
}

// world is how many ranks the job has: one a pod.
func (c Scenario) world() int {
	switch {
	case c.Pods > 0:
		return c.Pods
	case c.Slow():
		return PeerWorld
	}
	return WorldSize
}

// Job is a submitted training job.
type Job struct {
	Name string
	Dir  string // of the ranks' logs
	UID  string
	Kind string
	// World is how many ranks it has.
	World int
}

// Submit starts a job for scenario c and returns when the API has it.
func (s *Stage) Submit(ctx context.Context, name string, c Scenario) (*Job, error) {
	j := &Job{Name: name, Kind: c.Workload, Dir: filepath.Join(s.box.Dir(), "train", name), World: c.world()}
	if err := os.MkdirAll(j.Dir, 0o755); err != nil {
		return nil, err
	}
	w := sandbox.Workload{
		Name: name, Namespace: Namespace, Launcher: c.Launcher, Pods: j.World, Python: s.python,
		Env: map[string]string{
			"PITCREW_TRAIN_LOG": j.Dir, "CKPT_DIR": "/checkpoints", "CKPT_EVERY": strconv.Itoa(ckptEvery),
			"STEP_SECONDS": strconv.FormatFloat(stepSeconds, 'g', -1, 64),
		},
	}
	maps.Copy(w.Env, c.Env)
	if _, err := s.box.Client().CoreV1().Namespaces().Get(ctx, Namespace, metav1.GetOptions{}); err != nil {
		if err := s.box.CreateNamespace(ctx, Namespace, map[string]string{"pitcrew.dev/heal": "enabled"}); err != nil {
			return nil, err
		}
	}
	if c.Workload == KindJobSet {
		set, err := s.box.JobSet(w)
		if err != nil {
			return nil, err
		}
		d, err := dynamic.NewForConfig(s.box.Config())
		if err != nil {
			return nil, err
		}
		made, err := d.Resource(sandbox.JobSetResource).Namespace(Namespace).Create(ctx, set, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		acc, err := meta.Accessor(made)
		if err != nil {
			return nil, err
		}
		j.UID = string(acc.GetUID())
		return j, nil
	}
	spec, err := s.box.Job(w)
	if err != nil {
		return nil, err
	}
	made, err := s.box.Client().BatchV1().Jobs(Namespace).Create(ctx, spec, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	j.UID = string(made.UID)
	return j, nil
}

// Remove deletes the job and waits until its pods are gone.
func (s *Stage) Remove(ctx context.Context, j *Job) error {
	now := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{PropagationPolicy: &now}
	var err error
	if j.Kind == KindJobSet {
		d, derr := dynamic.NewForConfig(s.box.Config())
		if derr != nil {
			return derr
		}
		err = d.Resource(sandbox.JobSetResource).Namespace(Namespace).Delete(ctx, j.Name, opts)
	} else {
		err = s.box.Client().BatchV1().Jobs(Namespace).Delete(ctx, j.Name, opts)
	}
	if err != nil {
		return err
	}
	return poll(ctx, time.Minute, func() (bool, error) {
		pods, err := s.box.Client().CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 0, err
	})
}

// poll asks every 20 ms; the demo watches from the outside, it is not on Pitcrew's path.
func poll(ctx context.Context, within time.Duration, done func() (bool, error)) error {
	end := time.Now().Add(within)
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if time.Now().After(end) {
			return errors.New("not within " + within.String())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Reached waits until every rank has logged step.
func (s *Stage) Reached(ctx context.Context, j *Job, step int64, within time.Duration) error {
	err := poll(ctx, within, func() (bool, error) {
		for rank := range j.World {
			last, err := lastStep(j.Dir, rank)
			if err != nil || last < step {
				return false, nil //nolint:nilerr // no log yet
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("the job's %d ranks did not reach step %d: %w; --dir keeps its logs", j.World, step, err)
	}
	return nil
}

// Recover runs one scenario on a job that is under way and says what came of it. show, if not nil, hears of each new line.
func (s *Stage) Recover(ctx context.Context, j *Job, c Scenario, show func(string)) Result {
	r := Result{Fault: string(c.Fault), Rank: c.Rank, Launcher: c.Launcher, Workload: c.Workload, Trainer: s.trainer, OK: true}
	if show == nil {
		show = func(string) {}
	}
	in, err := s.box.Fault(ctx, sandbox.Fault{Kind: c.Fault, Rank: c.Rank})
	if err != nil {
		r.fail("%v", err)
		return r
	}
	show(fmt.Sprintf("%9s  %-12s %8s  %s on %s (%s)", "+0.000 s", "FAULT", "", c.Fault, in.Node, in.GPU.UUID))
	i, err := s.Follow(ctx, j, in, show)
	if err != nil {
		r.FaultyNode = in.Node
		r.fail("%v", err)
		return r
	}
	r.fill(i, in.Node, in.At)
	if !r.OK {
		return r
	}
	if err := s.Reached(ctx, j, r.ResumedStep+c.settle(), healsWithin); err != nil {
		r.fail("%v", err)
	}
	s.verify(ctx, j, in, i, &r)
	if c.Slow() {
		r.measure(j, i, in)
	}
	return r
}

// Follow waits for the incident of job j to open after the fault and to close, showing each line of it.
func (s *Stage) Follow(ctx context.Context, j *Job, in sandbox.Injected, show func(string)) (incident.Incident, error) {
	opens, heals, slow := opensWithin, healsWithin, slices.Contains(sandbox.SlowFaults, in.Kind)
	if slow {
		opens, heals = opens+slowWithin, heals+slowWithin
	}
	ctx, cancel := context.WithTimeout(ctx, heals)
	defer cancel()
	var last incident.Incident
	shown := 0
	open := time.AfterFunc(opens, cancel)
	err := s.incidents.Watch(ctx, nil, func(c bus.Change[incident.Incident]) {
		i := c.Value
		if i.Job == nil || i.Job.UID != j.UID || i.Opened.Before(in.At) || last.ID != "" && last.ID != i.ID {
			return
		}
		if slow && (i.Plan == nil || !i.Plan.Has(policy.RestartJob)) {
			return // what the node measures is reported too, in incidents that only notify
		}
		open.Stop()
		last = i
		for ; shown < len(i.Notes); shown++ {
			n := i.Notes[shown]
			took := ""
			if n.TookS > 0 {
				took = fmt.Sprintf("%.3f s", n.TookS)
			}
			show(fmt.Sprintf("%9s  %-12s %8s  %s", fmt.Sprintf("+%.3f s", n.At.Sub(in.At).Seconds()), n.State, took, n.Text))
			if n.State == incident.Placed && n.TookS > 0 {
				showCandidates(i, show)
			}
		}
		if !i.Open() {
			cancel()
		}
	})
	switch {
	case err != nil:
		return last, err
	case last.ID == "":
		return last, errors.Join(fmt.Errorf("no incident opened within %s of %s on %s", opens, in.Kind, in.Node), s.died())
	case last.Open():
		return last, errors.Join(fmt.Errorf("incident %s stands at %s: %s", last.ID, last.State, last.Waiting), s.died())
	}
	return last, nil
}

func showCandidates(i incident.Incident, show func(string)) {
	for _, m := range i.Moves {
		if m.Decision == nil {
			continue
		}
		for _, c := range m.Decision.Candidates {
			mark := "✗"
			if c.Chosen {
				mark = "✓"
			}
			show(fmt.Sprintf("%9s  %-12s %8s    %s %-4s %s", "", "", "", mark, c.Node, c))
		}
	}
}

// verify checks from the outside what the incident claims.
func (s *Stage) verify(ctx context.Context, j *Job, in sandbox.Injected, i incident.Incident, r *Result) {
	if i.Checkpoint != nil && i.Checkpoint.Taken {
		r.CheckpointStep = i.Checkpoint.Save.Step
	} else if step, err := newestManifest(filepath.Join(s.box.Checkpoints(), Namespace+"-"+j.Name), r.ResumedStep); err != nil {
		r.fail("%v", err)
	} else {
		r.CheckpointStep = step
	}
	if r.ResumedStep != r.CheckpointStep {
		r.fail("resumed from step %d, the checkpoint is of step %d", r.ResumedStep, r.CheckpointStep)
	}
	if lives := r.Fault == string(sandbox.ECCDegrading) || slices.Contains(sandbox.SlowFaults, in.Kind); lives && r.LostSteps != 0 {
		r.fail("%d steps were lost though every rank could be saved", r.LostSteps)
	}
	for rank := range j.World {
		if err := ResumedOnce(j.Dir, rank, 0, r.ResumedStep); err != nil {
			r.fail("%v", err)
		}
	}
	pods, err := s.box.Client().CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		r.fail("%v", err)
		return
	}
	faulty := i.FaultyNodes()
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil && slices.Contains(faulty, p.Spec.NodeName) {
			r.fail("pod %s runs on the faulty node %s", p.Name, p.Spec.NodeName)
		}
	}
}
