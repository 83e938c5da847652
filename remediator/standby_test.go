package remediator_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

// candidate is a remediator in a process of its own.
type candidate struct {
	*exec.Cmd
	audit, log string
}

func (m *moving) candidate(name, nats, policies string, more ...string) *candidate {
	m.Helper()
	self, err := os.Executable()
	m.must(err)
	c := &candidate{audit: filepath.Join(m.TempDir(), "audit.jsonl"), log: filepath.Join(m.TempDir(), "log")}
	args := []string{asRemediator, "--nats", nats, "--kubeconfig", asEnforcer(m, m.s), "--policies", policies, "--audit", c.audit, "--identity", name + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	c.Cmd = exec.Command(self, append(args, more...)...)
	out, err := os.Create(c.log)
	m.must(err)
	c.Stdout, c.Stderr = out, out
	m.must(c.Start())
	m.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = out.Close()
		if m.Failed() {
			raw, _ := os.ReadFile(c.log)
			m.Logf("%s:\n%s", name, raw)
		}
	})
	return c
}

func (c *candidate) says(word string) bool {
	raw, err := os.ReadFile(c.log)
	return err == nil && strings.Contains(string(raw), word)
}

// wrote are the requests that the candidate sent and that were accepted, as "what object".
func (c *candidate) wrote(t *testing.T, since time.Time) (out []string) {
	t.Helper()
	f, err := os.Open(c.audit)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for in := bufio.NewScanner(f); in.Scan(); {
		var l struct {
			At                               time.Time
			Stage, Verb, Object, What, Error string
			DryRun                           bool `json:"dry_run"`
		}
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		if l.Stage == "done" && l.Error == "" && !l.DryRun && !l.At.Before(since) {
			out = append(out, l.What+" "+l.Object)
		}
	}
	return out
}

// state of a process as the kernel says it, such as T for stopped.
func (c *candidate) state() string {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.Process.Pid), "stat"))
	if _, after, ok := strings.Cut(string(raw), ") "); err == nil && ok {
		return after[:1]
	}
	return ""
}

// Two candidates: the first leads and comes to harm in the middle of an incident, after doing a step and before recording it.
func TestAStandbyGoesOnWhereADeadOrStoppedLeaderWasAndDoesNothingTwice(t *testing.T) {
	for _, c := range []struct {
		after  incident.State
		signal syscall.Signal
	}{ // after a save: sandbox/e2e
		{incident.Restarted, syscall.SIGKILL}, // its evictions are done
		{incident.Cordoned, syscall.SIGSTOP},
	} {
		t.Run(c.signal.String()+" after "+string(c.after), func(t *testing.T) {
			m := &moving{T: t, s: sandboxtest.Cluster(t)}
			t.Cleanup(m.tidy)
			m.open("a1", "a2")
			m.first = m.submit(false)
			if err := m.s.CreateNamespace(t.Context(), "pitcrew-system", nil); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
			dir := t.TempDir()
			server, err := bus.StartServer(bus.ServerOptions{Port: -1, Dir: filepath.Join(dir, "bus")})
			m.must(err)
			t.Cleanup(server.Stop)
			b, err := bus.Connect(bus.Options{URL: server.URL(), Cluster: "bench"})
			m.must(err)
			t.Cleanup(b.Close)
			m.incidents = bus.NewBucket[incident.Incident](b, bus.IncidentBucket)
			policies := filepath.Join(dir, "policy.yaml")
			m.must(os.WriteFile(policies, []byte(movingPolicy), 0o600))

			_ = m.s.Client().CoordinationV1().Leases("pitcrew-system").Delete(t.Context(), "pitcrew-remediator", metav1.DeleteOptions{}) // of the test before
			first := m.candidate("first", server.URL(), policies, "--after", string(c.after), "--signal", strconv.Itoa(int(c.signal)))
			m.eventually("the first to lead", func() bool { return first.says("replacement pods are steered") })
			second := m.candidate("second", server.URL(), policies)
			m.eventually("the second to stand by", func() bool {
				return second.says("attempting to acquire leader lease") || second.says("Attempting to acquire leader lease")
			})
			pub, err := b.NewPublisher("", nil)
			m.must(err)
			src, now := event.Source("bench", m.first.Spec.NodeName, "xid"), time.Now()
			m.must(pub.Publish(event.Event{ID: event.NewID(src, now.String()), Source: src, Type: event.Fault, Time: now, Data: event.Data{
				Target: event.Target{Cluster: "bench", Node: m.first.Spec.NodeName, GPU: "GPU-1"}, Cause: event.Cause{Kind: "xid", Code: "79"}, Severity: event.Fatal, Onset: now}}))
			if c.signal == syscall.SIGKILL {
				_ = first.Wait()
			} else {
				m.eventually("the first to be stopped", func() bool { return first.state() == "T" })
			}
			harmed := time.Now()
			i := m.reaches(restarted)
			took := time.Since(harmed)
			if limit := lease + lease/2 + 4*time.Second; took > limit { // the lease, a try, and what was left to do
				t.Errorf("taken over and done in %v, not within %v", took, limit)
			}
			t.Logf("taken over and done in %v", took.Round(10*time.Millisecond))
			woken := time.Now()
			if c.signal == syscall.SIGSTOP {
				m.must(first.Process.Signal(syscall.SIGCONT))
				m.eventually("the first to see that it is deposed", func() bool {
					return first.says("lost lease") || first.says("Failed to renew lease") || first.says("failed to renew lease")
				})
				time.Sleep(time.Second)
				if w := first.wrote(t, woken); len(w) > 0 {
					t.Errorf("deposed, it wrote %q", w)
				}
			}
			done := map[string]int{}
			for _, w := range append(first.wrote(t, now), second.wrote(t, now)...) {
				done[w]++
			}
			for w, n := range done {
				if n > 1 && !strings.HasPrefix(w, "Pitcrew") && !strings.Contains(w, "condition") && !strings.Contains(w, "reserve") && !strings.Contains(w, "release") {
					t.Errorf("%q was done %d times", w, n)
				}
			}
			if n := done["evict Pod default/"+m.first.Name]; n != 1 || done["cordon Node "+m.first.Spec.NodeName] != 1 {
				t.Errorf("the pod was evicted %d times; all: %v", n, done)
			}
			if pods := m.all(); len(pods) != 1 || string(pods[0].UID) != i.Moves[0].NewUID || i.Restarts != 1 {
				t.Errorf("%d pods, move %+v, %d restarts", len(pods), i.Moves[0], i.Restarts)
			}
		})
	}
}

// all are the job's pods that stay.
func (m *moving) all() (out []corev1.Pod) {
	m.Helper()
	pods, err := m.s.Client().CoreV1().Pods("default").List(m.Context(), jobPods(m.job.Name))
	m.must(err)
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}
