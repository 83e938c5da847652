package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// healed checks from outside what a closed incident claims: each pod went once, one attempt was begun, the ranks went back once and
// to the checkpoint's step, losses repeat bit for bit, nothing stays reserved, no pod stands on a faulty node.
func (r *rig) healed(j *demo.Job, b before, i incident.Incident) {
	r.Helper()
	r.healedWithin(j, b, i, 1)
}

// healedWithin is healed for a fault that may take more than one restart.
func (r *rig) healedWithin(j *demo.Job, b before, i incident.Incident, restarts int) {
	r.Helper()
	if i.Outcome != incident.Recovered {
		r.Fatalf("incident %s ended as %s: %s", i.ID, i.Outcome, i.Reason)
	}
	r.must(r.Reached(r.ctx, j, *i.ResumedStep+10, time.Minute))
	if others := r.opened(b.at); len(others) != 1 {
		r.Errorf("%d incidents were opened, not one: %s", len(others), summary(others))
	}
	if i.Restarts < 1 || i.Restarts > restarts {
		r.Errorf("the incident counts %d restarts, not 1 to %d", i.Restarts, restarts)
	}
	if i.Path == "launcher" && r.attempt(j) != b.attempt+i.Restarts {
		r.Errorf("attempt %d follows %d after %d restarts", r.attempt(j), b.attempt, i.Restarts)
	}
	replaced := i.PodsReplaced()
	if restarts > 1 {
		replaced = -1 // the record counts those of its last plan
	}
	r.removedOnce(j, b, replaced)
	r.resumedFromCheckpoint(j, i)
	for rank := range demo.WorldSize {
		if err := errors.Join(demo.ResumedOnce(j.Dir, rank, b.lines[rank], *i.ResumedStep), sameLosses(j.Dir, rank)); err != nil {
			r.Error(err)
		}
	}
	r.nothingReserved()
	for _, p := range r.pods(j) {
		if slices.Contains(i.FaultyNodes(), p.Spec.NodeName) {
			r.Errorf("pod %s stands on the faulty node %s", p.Name, p.Spec.NodeName)
		}
	}
}

func summary(is []incident.Incident) string {
	var out []string
	for _, i := range is {
		out = append(out, fmt.Sprintf("%s %s on %s: %s %s", i.ID, i.Faults[0].Signal, i.Faults[0].Node, i.State, i.Outcome))
	}
	return strings.Join(out, "; ")
}

// removedOnce asks the API server's own record: no pod UID went twice, nobody else's went, and pods went want times in all.
func (r *rig) removedOnce(j *demo.Job, b before, want int) {
	r.Helper()
	log, err := demo.ReadAudit(r.Box().AuditLog(), b.at, j.Name)
	r.must(err)
	for uid, n := range log.Removed {
		if n > 1 {
			r.Errorf("pod %s was evicted or deleted %d times", uid, n)
		}
	}
	if len(log.Strangers) > 0 {
		r.Errorf("somebody else's pods were touched: %v", log.Strangers)
	}
	most := len(log.Removed)
	for uid := range log.Unsure {
		if log.Removed[uid] == 0 {
			most++
		}
	}
	if want >= 0 && (len(log.Removed) > want || most < want) {
		r.Errorf("%d pods were removed, and %d perhaps; the incident moved %d", len(log.Removed), most-len(log.Removed), want)
	}
}

// sameLosses checks that a step which was made again had the same loss, bit for bit: what was resumed is what was saved.
func sameLosses(dir string, rank int) error {
	l, err := demo.ReadLog(dir, rank)
	if err != nil {
		return err
	}
	losses := map[int64]string{}
	for _, x := range l {
		if was, again := losses[x.Step]; again && was != x.Loss {
			return fmt.Errorf("rank %d, step %d: loss %s, and %s before", rank, x.Step, x.Loss, was)
		}
		losses[x.Step] = x.Loss
	}
	return nil
}

// unbroken checks that a rank's log goes up by one step at a time, in one attempt, from a line on.
func unbroken(dir string, rank, from int) error {
	l, err := demo.ReadLog(dir, rank)
	if err != nil {
		return err
	}
	for k := max(1, from); k < len(l); k++ {
		if l[k].Step != l[k-1].Step+1 || l[k].Attempt != l[k-1].Attempt {
			return fmt.Errorf("rank %d went from step %d of attempt %d to step %d of attempt %d", rank, l[k-1].Step, l[k-1].Attempt, l[k].Step, l[k].Attempt)
		}
	}
	return nil
}

type manifest struct {
	Step  int64 `json:"step"`
	Files []struct {
		Name  string `json:"name"`
		Bytes int64  `json:"bytes"`
		CRC32 string `json:"crc32"`
	} `json:"files"`
}

// sound reads a checkpoint directory as docs/hook-protocol.md defines it: every file of the manifest with its size and checksum.
func sound(dir string) (manifest, error) {
	var m manifest
	raw, err := os.ReadFile(filepath.Join(dir, "MANIFEST.json"))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fmt.Errorf("%s: %w", dir, err)
	}
	if len(m.Files) == 0 {
		return m, fmt.Errorf("%s: its manifest names no file", dir)
	}
	for _, f := range m.Files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name))
		if err != nil {
			return m, err
		}
		if sum := fmt.Sprintf("%08x", crc32.ChecksumIEEE(data)); int64(len(data)) != f.Bytes || sum != f.CRC32 {
			return m, fmt.Errorf("%s/%s: %d bytes, crc32 %s; the manifest says %d, %s", dir, f.Name, len(data), sum, f.Bytes, f.CRC32)
		}
	}
	return m, nil
}

// resumedFromCheckpoint checks that the ranks went back to a sound checkpoint, to the one taken for them where one was, and that none is torn.
func (r *rig) resumedFromCheckpoint(j *demo.Job, i incident.Incident) {
	r.Helper()
	if c := i.Checkpoint; c != nil && c.Taken && c.Save.Step != *i.ResumedStep {
		r.Errorf("resumed from step %d, the checkpoint taken is of step %d", *i.ResumedStep, c.Save.Step)
	}
	dirs, err := filepath.Glob(filepath.Join(r.checkpoints(j), "step-*"))
	r.must(err)
	found := false
	for _, d := range dirs {
		if strings.HasSuffix(d, ".quarantine") {
			r.Errorf("%s was damaged", d)
			continue
		}
		m, err := sound(d)
		if os.IsNotExist(err) { // no manifest (yet), or just cleared away: no checkpoint
			continue
		}
		if err != nil {
			r.Errorf("a torn checkpoint: %v", err)
		}
		found = found || m.Step == *i.ResumedStep
	}
	steps, err := lastOf(j)
	r.must(err)
	if !found && steps < *i.ResumedStep+3*20 { // the newest three periodic ones are kept
		r.Errorf("resumed from step %d, of which there is no sound checkpoint in %v", *i.ResumedStep, dirs)
	}
}

func lastOf(j *demo.Job) (int64, error) {
	l, err := demo.ReadLog(j.Dir, 0)
	if err != nil || len(l) == 0 {
		return 0, err
	}
	return l[len(l)-1].Step, nil
}

// nothingReserved checks that no promise of a node outlives its incident.
func (r *rig) nothingReserved() {
	r.Helper()
	maps, err := r.Box().Client().CoreV1().ConfigMaps(demo.SystemNamespace).List(r.ctx, metav1.ListOptions{LabelSelector: cluster.LabelReservation + "=true"})
	r.must(err)
	for _, m := range maps.Items {
		r.Errorf("reservation %s is still there: %v", m.Name, m.Data)
	}
	ns, err := r.Box().Client().CoreV1().Nodes().List(r.ctx, metav1.ListOptions{})
	r.must(err)
	for _, n := range ns.Items {
		for _, t := range n.Spec.Taints {
			if t.Key == cluster.TaintReserved {
				r.Errorf("node %s is still reserved for incident %s", n.Name, t.Value)
			}
		}
	}
}
