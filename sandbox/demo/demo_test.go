package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/sandbox"
)

const logged = `{"stage":"ResponseComplete","verb":%q,"userAgent":%q,"requestURI":%q,"objectRef":{"resource":"pods","subresource":%q,"namespace":%q,"name":%q},` +
	`"responseStatus":{"code":%d},"requestObject":%s,"requestReceivedTimestamp":"2026-11-21T04:00:%02d.000000Z"}`

// auditLog writes lines as the API server does.
func auditLog(t *testing.T, lines ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func evicted(pod, uid string, at int) string {
	return fmt.Sprintf(logged, "create", "pitcrew-remediator", "/x", "eviction", Namespace, pod, 201, `{"deleteOptions":{"preconditions":{"uid":"`+uid+`"}}}`, at)
}

func deleted(pod, uid string, at int) string {
	return fmt.Sprintf(logged, "delete", "pitcrew-remediator", "/x", "", Namespace, pod, 200, `{"preconditions":{"uid":"`+uid+`"}}`, at)
}

func running(pod string, at int) string {
	return fmt.Sprintf(logged, "patch", "pitcrew-sandbox", "/x", "status", Namespace, pod, 200, `{"status":{"phase":"Running"}}`, at)
}

func read(t *testing.T, lines ...string) Record {
	t.Helper()
	r, err := ReadAudit(auditLog(t, lines...), time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC), "llm")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTheAuditLogShowsWhatWasDoneTwiceOrToStrangers(t *testing.T) {
	ok := read(t, running("llm-0-a", 1), running("llm-1-b", 1), evicted("llm-1-b", "u", 2), running("llm-1-c", 3))
	if ok.Removed["u"] != 1 || len(ok.Strangers)+len(ok.Doubled) != 0 {
		t.Errorf("a clean move: %+v", ok)
	}
	if r := read(t, evicted("llm-1-b", "u", 1), evicted("llm-1-b", "u", 2)); r.Removed["u"] != 2 {
		t.Errorf("two evictions of one pod: %+v", r)
	}
	if r := read(t, evicted("llm-1-b", "u", 1), deleted("llm-1-b", "u", 2)); r.Removed["u"] != 1 {
		t.Errorf("an eviction and the deletion on a lost node: %+v", r)
	}
	if r := read(t, evicted("other-0-x", "u", 1)); len(r.Strangers) != 1 {
		t.Errorf("somebody else's pod: %+v", r)
	}
	if r := read(t, running("llm-1-b", 1), running("llm-1-c", 2), evicted("llm-1-b", "u", 3)); len(r.Doubled) != 1 {
		t.Errorf("the new pod ran before the old one was told to go: %+v", r)
	}
	if r := read(t, strings.Replace(evicted("llm-1-b", "u", 1), "201", "429", 1)); len(r.Removed) != 0 {
		t.Errorf("a refused eviction removes nothing: %+v", r)
	}
	if r := read(t, strings.Replace(evicted("llm-1-b", "u", 1), "/x", "/x?dryRun=All", 1)); len(r.Removed) != 0 {
		t.Errorf("a question removes nothing: %+v", r)
	}
	if _, err := ReadAudit(auditLog(t, evicted("llm-1-b", "", 1)), time.Time{}, "llm"); err == nil {
		t.Error("an eviction without a UID precondition must be an error")
	}
}

// trained writes a rank's log: "step attempt" pairs.
func trained(t *testing.T, pairs ...[2]int) string {
	t.Helper()
	dir := t.TempDir()
	for rank := range WorldSize {
		var b strings.Builder
		for _, p := range pairs {
			fmt.Fprintf(&b, "%d 0x1.%dp+0 %d %d 1.5\n", p[0], p[0], p[1], rank)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("rank-%d.log", rank)), []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestALogMustReturnOnceAndToTheStepAfterTheCheckpoint(t *testing.T) {
	cases := map[string]struct {
		log [][2]int
		ok  bool
	}{
		"back to the step after the checkpoint":  {[][2]int{{20, 0}, {21, 0}, {22, 0}, {21, 1}, {22, 1}}, true},
		"no step lost, stock torchrun":           {[][2]int{{19, 0}, {20, 0}, {21, 0}}, true},
		"back too far":                           {[][2]int{{20, 0}, {21, 0}, {20, 1}, {21, 1}}, false},
		"a step left out":                        {[][2]int{{20, 0}, {21, 0}, {23, 1}}, false},
		"two returns: two processes wrote steps": {[][2]int{{21, 0}, {21, 1}, {21, 2}, {22, 2}}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := ResumedOnce(trained(t, c.log...), 0, 0, 20); (err == nil) != c.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestALossThatDiffersInItsLastBitIsFound(t *testing.T) {
	dir := trained(t, [2]int{1, 0}, [2]int{2, 0})
	ref := []map[int64]string{{1: "0x1.1p+0", 2: "0x1.2p+0"}, {1: "0x1.1p+0", 2: "0x1.2p+0"}}
	if why, err := differs(dir, ref); err != nil || why != "" {
		t.Errorf("equal losses: %q %v", why, err)
	}
	ref[1][2] = "0x1.20001p+0"
	if why, _ := differs(dir, ref); !strings.Contains(why, "rank 1, step 2") {
		t.Errorf("differing loss: %q", why)
	}
	delete(ref[0], 2)
	if why, _ := differs(dir, ref); why == "" {
		t.Error("a step that the reference lacks must be said")
	}
}

func TestThePlanCoversEveryFaultRankAndWorkload(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range plan(2*2*len(healed)*2, sandbox.LauncherPitcrew) {
		seen[fmt.Sprint(c.Fault, c.Rank, c.Workload)] = true
	}
	if want := len(healed) * 4; len(seen) != want {
		t.Errorf("%d of %d combinations", len(seen), want)
	}
}

func TestQuantilesAreOrderStatistics(t *testing.T) {
	q := quantiles([]float64{3, 1, 2, 4})
	if q.N != 4 || q.P50 != 2 || q.P95 != 4 || q.Mean != 2.5 || q.Max != 4 {
		t.Errorf("%+v", q)
	}
}

func TestWhatTheBenchmarkCannotRunIsRefusedBeforeAnythingIsStarted(t *testing.T) {
	for args, want := range map[string]string{"bench --n 0": "at least one", "bench --launcher mpirun": `unknown launcher "mpirun"`, "bench -o yaml": `unknown output "yaml"`,
		"--fault nonsense": "ecc-degrading, xid79", "--launcher mpirun": "unknown launcher", "-o yaml": "text or json", "--rank 2": "ranks 0 to 1"} {
		c := Command()
		c.SilenceUsage, c.SilenceErrors = true, true
		c.SetArgs(strings.Fields(args))
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("demo %s: %v", args, err)
		}
	}
}

func TestAJobThatWasNotHealedIsNotSaidToStepAgain(t *testing.T) {
	var out strings.Builder
	Result{Fault: "xid79", FaultyNode: "a1", Trainer: "torch", Why: []string{"no incident opened"}}.write(&out)
	if got := out.String(); !strings.Contains(got, "NOT HEALED  xid79 on a1") || !strings.Contains(got, "no incident opened") || strings.Contains(got, "stepped again") {
		t.Error(got)
	}
}
