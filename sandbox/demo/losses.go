package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pitcrew/pitcrew/sandbox"
)

// Line is one step as the trainer logged it.
type Line struct {
	Step    int64
	Loss    string // hexadecimal float: compared bit for bit
	Attempt int
	At      float64 // unix seconds
}

func logFile(dir string, rank int) string {
	return filepath.Join(dir, fmt.Sprintf("rank-%d.log", rank))
}

// ReadLog reads a rank's log; a last line that is still being written is left out.
func ReadLog(dir string, rank int) ([]Line, error) {
	f, err := os.Open(logFile(dir, rank))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Line
	for s := bufio.NewScanner(f); s.Scan(); {
		p := strings.Fields(s.Text())
		if len(p) != 5 {
			continue
		}
		step, err1 := strconv.ParseInt(p[0], 10, 64)
		attempt, err2 := strconv.Atoi(p[2])
		at, err3 := strconv.ParseFloat(p[4], 64)
		if err1 == nil && err2 == nil && err3 == nil {
			out = append(out, Line{step, p[1], attempt, at})
		}
	}
	return out, nil
}

func lastStep(dir string, rank int) (int64, error) {
	l, err := ReadLog(dir, rank)
	if err != nil || len(l) == 0 {
		return -1, err
	}
	return l[len(l)-1].Step, nil
}

// ResumedOnce checks that a rank's log, from line from on, goes back at most once, and then to the step after resumed. Where no step was lost
// and stock torchrun numbers no attempts, the log shows no return.
func ResumedOnce(dir string, rank, from int, resumed int64) error {
	l, err := ReadLog(dir, rank)
	if err != nil {
		return err
	}
	returns := 0
	for k := max(1, from); k < len(l); k++ {
		if l[k].Step == l[k-1].Step+1 && l[k].Attempt == l[k-1].Attempt {
			continue
		}
		if returns++; l[k].Step != resumed+1 {
			return fmt.Errorf("rank %d went from step %d to %d, not to the step after %d", rank, l[k-1].Step, l[k].Step, resumed)
		}
	}
	if returns > 1 {
		return fmt.Errorf("rank %d's log shows %d returns, not one", rank, returns)
	}
	return nil
}

// newestManifest is the step of the newest complete checkpoint in dir that is not above step.
func newestManifest(dir string, step int64) (int64, error) {
	found, err := filepath.Glob(filepath.Join(dir, "step-*.attempt-*", "MANIFEST.json"))
	if err != nil {
		return 0, err
	}
	best := int64(0)
	for _, f := range found {
		raw, err := os.ReadFile(f)
		if err != nil {
			return 0, err
		}
		var m struct {
			Step int64 `json:"step"`
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			return 0, fmt.Errorf("%s: %w", f, err)
		}
		if m.Step <= step {
			best = max(best, m.Step)
		}
	}
	return best, nil
}

// reference runs the same training without interruption, as fast as it goes, and returns the losses by rank and step.
func (s *Stage) reference(ctx context.Context, world int, steps int64) ([]map[int64]string, error) {
	dir := filepath.Join(s.box.Dir(), "train", "reference-"+strconv.Itoa(world))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := sandbox.RepoRoot()
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, s.python.Path, "-m", "pitcrew_torch.run", "--standalone", "--nproc-per-node", strconv.Itoa(world),
		filepath.Join(root, "sandbox", "trainer", "train.py"))
	c.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "python"), "PITCREW_TRAIN_LOG="+dir, "CKPT_DIR="+filepath.Join(dir, "ckpt"),
		"CKPT_EVERY=1000000", "STEP_SECONDS=0", "TOTAL_STEPS="+strconv.FormatInt(steps, 10), "GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1")
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("reference run: %w\n%s", err, out)
	}
	ref := make([]map[int64]string, world)
	for rank := range world {
		ref[rank] = map[int64]string{}
		l, err := ReadLog(dir, rank)
		if err != nil {
			return nil, err
		}
		for _, x := range l {
			ref[rank][x.Step] = x.Loss
		}
	}
	return ref, nil
}

// differs names the first step whose loss is not bit for bit the reference's, or is empty.
func differs(dir string, ref []map[int64]string) (string, error) {
	for rank := range ref {
		l, err := ReadLog(dir, rank)
		if err != nil {
			return "", err
		}
		for _, x := range l {
			want, ok := ref[rank][x.Step]
			if !ok {
				return fmt.Sprintf("rank %d: the reference has no step %d", rank, x.Step), nil
			}
			if want != x.Loss {
				return fmt.Sprintf("rank %d, step %d, attempt %d: loss %s, uninterrupted %s", rank, x.Step, x.Attempt, x.Loss, want), nil
			}
		}
	}
	return "", nil
}
