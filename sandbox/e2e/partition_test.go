package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// concluded is when silence alone has surely opened an incident: the slowest look at a silent node comes 5 s later.
const concluded = lossWait + 6*time.Second

// The front-end network of one node fails: no agent, no kubelet. Training goes on over its own network, and nobody
// touches it.
func TestANodeThatIsOnlyCutOffFromTheControlPlaneTrainsOn(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	b, was := r.before(j), r.ranks(j)
	r.cut(b.pods["0"].Spec.NodeName)
	r.stepsOn(j, concluded)
	r.untouched(j, b, was)
	if is := r.opened(b.at); len(is) > 0 {
		r.Errorf("an incident was opened of a node whose peers step: %s", summary(is))
	}
	r.join()
	r.stepsOn(j, 3*time.Second)
	r.untouched(j, b, was)
}

// The network of all nodes of a job fails. Nobody can tell whether it trains, so a person is asked and nothing is done.
// The person errs: a second attempt starts beside the first. From its claim on, the first writes nothing, and ends.
func TestAGangThatIsCutOffTrainsOnUntilASecondAttemptClaimsItsDirectory(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	b, was := r.before(j), r.ranks(j)
	files := r.watchCheckpoints(j)
	claims := len(files.claims())
	r.cut(b.pods["0"].Spec.NodeName, b.pods["1"].Spec.NodeName)
	asked := func(i incident.Incident) bool { return i.Wait != nil && i.Wait.Reason == incident.ReasonEvidence }
	waits := r.whenReached(j, b.at, asked)
	r.stepsOn(j, concluded)
	r.untouched(j, b, was)
	i := waits()
	r.stepsOn(j, 3*time.Second)
	r.untouched(j, b, was)
	if n := len(files.claims()); n > claims {
		r.Fatalf("%d attempts claimed the directory without proof that the first had ended", n-claims)
	}

	r.approve(i.ID, time.Minute, did(incident.Restarted))
	r.must(poll(r.ctx, time.Minute, func() (bool, error) { return len(files.claims()) > claims, nil }))
	if err := poll(r.ctx, 15*time.Second, func() (bool, error) { return !r.anyAlive(was), nil }); err != nil {
		r.Errorf("a rank of the first attempt still runs: %v", err)
	}
	files.oneWriter()
	r.fenced(b, was)
	r.must(poll(r.ctx, time.Minute, func() (bool, error) {
		i, _, err := r.Incidents().Get(r.ctx, i.ID)
		return !i.Open(), err
	}))
	if i, _, err := r.Incidents().Get(r.ctx, i.ID); err != nil || i.Outcome != incident.Recovered {
		r.Errorf("the incident ended as %s: %s, %v", i.Outcome, i.Reason, err)
	}
	files.oneWriter()
	r.join()
	r.stepsOn(j, 5*time.Second)
	files.oneWriter()
}

// The node of rank 0 loses its power during an evaluation, of which nobody can tell how long it takes. The rank on the
// other node reads that the heartbeat stands still: no person is asked.
func TestANodeLostDuringAnEvaluationIsProvedByTheHeartbeat(t *testing.T) {
	r := newRig(t)
	r.repair()
	j := r.submit(demo.Scenario{Launcher: sandbox.LauncherPitcrew, Workload: demo.KindJob, Env: map[string]string{"EVAL_EVERY": "60", "EVAL_SECONDS": "90"}})
	r.must(r.Reached(r.ctx, j, 60, 2*time.Minute))
	in := r.fault(sandbox.NodeLost, 0)
	i := r.follow(j, in)
	if i.Outcome != incident.Recovered || i.Approval != "" || !strings.Contains(i.LossProof[in.Node], "heartbeat") {
		r.Errorf("%s: %s; proof %v, answer %q", i.Outcome, i.Reason, i.LossProof, i.Approval)
	}
}

// Neither the API server nor the bus answers anybody. No rank, launcher or torchrun needs them.
func TestAnOutageOfTheAPIServerAndTheBusStopsNoJob(t *testing.T) {
	for _, launcher := range []string{sandbox.LauncherPitcrew, sandbox.LauncherTorchrun} {
		t.Run(launcher, func(t *testing.T) {
			r := newRig(t)
			j := r.training(launcher)
			b, was := r.before(j), r.ranks(j)
			files := r.watchCheckpoints(j)
			r.kill9("", "bus")
			r.freeze("kube-apiserver", 12*time.Second)
			r.stepsOn(j, 12*time.Second)
			r.must(r.Box().RestartProcess("", "bus", nil))
			r.must(r.Bus().Wait(r.ctx))
			r.stepsOn(j, 8*time.Second)
			r.untouched(j, b, was)
			files.oneWriter()
			if is := r.opened(b.at); len(is) > 0 {
				r.Errorf("the outage opened an incident: %s", summary(is))
			}
		})
	}
}

// cut takes nodes off the front-end network until join, or the test's end.
func (r *rig) cut(nodes ...string) {
	r.Helper()
	r.Cleanup(r.join)
	for _, name := range nodes {
		n, err := r.Box().Node(name)
		r.must(err)
		n.Cut()
	}
}

func (r *rig) join() {
	for _, n := range r.Box().Nodes() {
		n.Join()
	}
}

// ranks are the job's processes by rank.
func (r *rig) ranks(j *demo.Job) map[int]int {
	r.Helper()
	mine := map[string]bool{}
	for _, p := range r.pods(j) {
		mine[string(p.UID)] = true
	}
	pids := map[int]int{}
	for _, k := range r.Box().Ranks() {
		if mine[k.PodUID] {
			pids[k.Rank] = k.PID
		}
	}
	if len(pids) != demo.WorldSize {
		r.Fatalf("%d ranks run, not %d", len(pids), demo.WorldSize)
	}
	return pids
}

func (r *rig) anyAlive(pids map[int]int) bool {
	for _, k := range r.Box().Ranks() {
		if pids[k.Rank] == k.PID {
			return true
		}
	}
	return false
}

// stepsOn checks for a time that every rank makes ten more steps in each 10 s.
func (r *rig) stepsOn(j *demo.Job, d time.Duration) {
	r.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := r.steps(j, 10*time.Second); err != nil {
			r.Fatal(err)
		}
	}
}

// untouched checks that the job runs as before: the same processes, pods and attempt, and no step was made twice.
func (r *rig) untouched(j *demo.Job, b before, was map[int]int) {
	r.Helper()
	for rank, pid := range r.ranks(j) {
		if pid != was[rank] {
			r.Errorf("rank %d is process %d, it was %d", rank, pid, was[rank])
		}
	}
	now := r.pods(j)
	for index, p := range b.pods {
		if now[index] == nil || now[index].UID != p.UID {
			r.Errorf("pod %s of index %s is not there any more", p.Name, index)
		}
	}
	if a := r.attempt(j); a != b.attempt {
		r.Errorf("attempt %d, it was %d", a, b.attempt)
	}
	for rank := range demo.WorldSize {
		if err := unbroken(j.Dir, rank, b.lines[rank]); err != nil {
			r.Error(err)
		}
	}
}

// approve answers an incident as often as it asks for proof of a loss, until it is done.
func (r *rig) approve(id string, within time.Duration, done func(incident.Incident) bool) {
	r.Helper()
	answers := 0
	r.must(poll(r.ctx, within, func() (bool, error) {
		i, rev, err := r.Incidents().Get(r.ctx, id)
		switch {
		case err != nil || done(i):
			return err == nil, err
		case !i.Open():
			return false, fmt.Errorf("the incident ended as %s: %s", i.Outcome, i.Reason)
		}
		if i.Wait != nil && i.Wait.Reason == incident.ReasonEvidence && (i.Approval == "" || len(i.LossProof) == answers) {
			answers++
			i.Approval = fmt.Sprintf("approved by the test, answer %d", answers)
			if _, err := r.Incidents().Put(r.ctx, id, i, rev); err != nil {
				answers--
			}
		}
		return false, nil
	}))
}

// fenced checks that a rank found the later claim, said so, and ended with the exit code that is for nothing else. A
// rank that loses its peer before it looks ends with its collective's error.
func (r *rig) fenced(b before, was map[int]int) {
	r.Helper()
	logs := func() (found int, all string) {
		for index, p := range b.pods {
			n, err := r.Box().Node(p.Spec.NodeName)
			r.must(err)
			raw, err := os.ReadFile(filepath.Join(n.LogDir(p), "train.log"))
			r.must(err)
			rank, err := strconv.Atoi(index)
			r.must(err)
			log := string(raw[max(0, len(raw)-2000):])
			if strings.Contains(log, fmt.Sprintf("(pid %d) ended with code 76", was[rank])) &&
				strings.Contains(log, "This attempt has stopped and has written nothing since") {
				found++
			}
			all += "rank " + index + ":\n" + log + "\n"
		}
		return found, all
	}
	if err := poll(r.ctx, 10*time.Second, func() (bool, error) { n, _ := logs(); return n > 0, nil }); err != nil { // the launchers reap them
		_, all := logs()
		r.Errorf("no rank ended with code 76 because a later attempt claimed the directory\n%s", all)
	}
}

// poll asks every 50 ms.
func poll(ctx context.Context, within time.Duration, done func() (bool, error)) error {
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("not within %s", within)
		}
	}
}

// written are the files that were seen in a checkpoint directory, with the time of their last change.
type written struct {
	rig  *rig
	root string
	mu   sync.Mutex
	at   map[string]time.Time
}

// watchCheckpoints looks every 20 ms until the test ends: what an attempt prunes was written too.
func (r *rig) watchCheckpoints(j *demo.Job) *written {
	w := &written{rig: r, root: r.checkpoints(j), at: map[string]time.Time{}}
	ctx, stop := context.WithCancel(r.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			w.look()
		}
	}()
	r.Cleanup(func() { stop(); <-ended })
	return w
}

func (w *written) look() {
	_ = filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // it was pruned
		}
		if st, err := d.Info(); err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			if st.ModTime().After(w.at[path]) {
				w.at[path] = st.ModTime()
			}
		}
		return nil
	})
}

// claim is one attempt's right to the directory, from when on.
type claim struct {
	Epoch   int `json:"epoch"`
	Attempt int `json:"attempt"`
	from    time.Time
}

// claims are all claims of the directory, in order.
func (w *written) claims() (out []claim) {
	files, _ := filepath.Glob(filepath.Join(w.root, ".pitcrew", "claim-*.json"))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		w.rig.must(err)
		var c claim
		w.rig.must(json.Unmarshal(raw, &c))
		st, err := os.Stat(f)
		w.rig.must(err)
		c.from = st.ModTime()
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b claim) int { return a.Epoch - b.Epoch })
	return out
}

var (
	checkpointName = regexp.MustCompile(`/step-\d+\.attempt-(\d+)(?:\.epoch-(\d+))?`)
	beatName       = regexp.MustCompile(`/\.pitcrew/b(?:eat|ase)-(\d+)\.json$`)
)

// underWay is how long a write may take that had looked at the claims before the later claim came.
const underWay = time.Second

// oneWriter checks that at each moment only the newest claim's attempt had files written: checkpoints, manifests,
// receipts, heartbeats.
func (w *written) oneWriter() {
	w.rig.Helper()
	w.look()
	claims, wrote := w.claims(), map[int]int{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for path, at := range w.at {
		owner := -1
		if m := beatName.FindStringSubmatch(path); m != nil {
			owner, _ = strconv.Atoi(m[1])
		} else if m := checkpointName.FindStringSubmatch(path); m != nil {
			attempt, _ := strconv.Atoi(m[1])
			epoch, _ := strconv.Atoi(m[2])
			for _, c := range claims {
				if c.Attempt == attempt && (m[2] == "" || c.Epoch == epoch) && owner < 0 {
					owner = c.Epoch
				}
			}
		}
		if owner < 0 {
			continue
		}
		wrote[owner]++
		for _, c := range claims {
			if c.Epoch > owner && at.After(c.from.Add(underWay)) {
				w.rig.Errorf("claim %d wrote %s %s after claim %d was made", owner, filepath.Base(path), at.Sub(c.from), c.Epoch)
			}
		}
	}
	if last := claims[len(claims)-1]; wrote[last.Epoch] == 0 {
		w.rig.Errorf("claim %d, the newest of %d, wrote nothing", last.Epoch, len(claims))
	}
}
