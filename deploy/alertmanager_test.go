package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/notify"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

// places are fakes of Slack, Teams, PagerDuty and a webhook, by their paths.
type places struct {
	*httptest.Server
	mu  sync.Mutex
	got map[string][]string
}

func (p *places) of(path string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got[path])
}

func (p *places) wait(t *testing.T, path, holds string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, body := range p.of(path) {
			if strings.Contains(body, holds) {
				return body
			}
		}
	}
	t.Fatalf("%s did not get %q: %q", path, holds, p.of(path))
	return ""
}

// realAlertmanager runs the pinned Alertmanager with the shipped configuration.
func realAlertmanager(t *testing.T) (*notify.Alertmanager, *places) {
	t.Helper()
	program, err := sandbox.Alertmanager(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	p := &places{got: map[string][]string{}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		p.got[r.URL.Path] = append(p.got[r.URL.Path], string(body))
		p.mu.Unlock()
		if r.URL.Path == "/pagerduty" {
			w.WriteHeader(http.StatusAccepted)
		}
		_, _ = io.WriteString(w, "ok")
	}))
	t.Cleanup(p.Close)
	dir := t.TempDir()
	for name, text := range map[string]string{"slack-url": p.URL + "/slack", "teams-url": p.URL + "/teams", "webhook-url": p.URL + "/hook", "pagerduty-key": "0123456789abcdef0123456789abcdef"} {
		write(t, filepath.Join(dir, "secrets", name), text)
	}
	config, err := os.ReadFile("alertmanager/alertmanager.yaml")
	if err != nil {
		t.Fatal(err)
	}
	templates, err := os.ReadFile("alertmanager/pitcrew.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("/etc/alertmanager", dir, "https://events.pagerduty.com/v2/enqueue", p.URL+"/pagerduty", "group_interval: 30s", "group_interval: 1s").Replace(string(config))
	write(t, filepath.Join(dir, "alertmanager.yaml"), text)
	write(t, filepath.Join(dir, "pitcrew.tmpl"), string(templates))
	port, err := freeport.Claim()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	ctx, cancel := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, program, "--config.file="+filepath.Join(dir, "alertmanager.yaml"), "--storage.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--cluster.listen-address=")
	var log strings.Builder
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = c.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	a, err := notify.NewAlertmanager("http://"+address, "")
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if resp, err := http.Get("http://" + address + "/-/ready"); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return a, p
			}
		}
	}
	t.Fatal("Alertmanager does not start with the shipped configuration")
	return nil, nil
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const hostile = "<!channel> [ok](http://evil) & `x`"

func TestTheShippedAlertmanagerConfigurationMakesOneThreadOfOneIncident(t *testing.T) {
	a, p := realAlertmanager(t)
	began := time.Now()
	n := notify.Notice{
		Stage: notify.Opened, Incident: "inc-1", Cluster: "c", Node: "a2", Signal: "xid/79", Severity: "fatal", Began: began, At: began,
		Summary: hostile + " on a2. The guards allow the plan. No person is needed.", Detail: hostile,
	}
	send := func(n notify.Notice) {
		t.Helper()
		if proof, err := a.Send(t.Context(), n); err != nil || proof == "" {
			t.Fatalf("%s: proof %q, %v", n.Stage, proof, err)
		}
	}
	if err := a.Probe(t.Context(), notify.Notice{Key: "canary-1", Stage: notify.Canary, Cluster: "c", Summary: "the canary"}); err != nil {
		t.Fatal(err)
	}
	send(n)
	p.wait(t, "/slack", "No person is needed.")
	n.Stage, n.NeedsPerson, n.Summary = notify.Waiting, true, hostile+" on a2. Pitcrew waits. A person is needed: approve it."
	send(n)
	page := p.wait(t, "/pagerduty", `"event_action":"trigger"`)
	parent := n // 500 incidents of one cause: their parent goes on in the first one's thread
	parent.Stage, parent.Incident, parent.Thread = notify.Updated, "inc-parent", "inc-1"
	for nodes := 2; nodes <= 512; nodes *= 2 {
		parent.Nodes, parent.Summary = nodes, fmt.Sprintf("rack r1: xid/79 on %d nodes. A person is needed: approve it.", nodes)
		send(parent)
	}
	n.Node, n.Signal, n.Severity = "a3", "xid/95", "warning" // the first fault has ended
	n.Stage, n.NeedsPerson, n.Ended, n.At, n.Summary = notify.Closed, false, time.Now(), time.Now(), "xid/79 on a2. Closed as recovered. No person is needed."
	send(n)
	done := p.wait(t, "/pagerduty", `"event_action":"resolve"`)
	p.wait(t, "/slack", "Closed as recovered")
	p.wait(t, "/teams", "Closed as recovered")
	p.wait(t, "/hook", `"status":"resolved"`)
	key := func(body string) string {
		var e struct {
			Key string `json:"dedup_key"`
		}
		if err := json.Unmarshal([]byte(body), &e); err != nil || e.Key == "" {
			t.Errorf("%s: %v", body, err)
		}
		return e.Key
	}
	for _, body := range p.of("/pagerduty") {
		if key(body) != key(page) {
			t.Errorf("two PagerDuty incidents: %s and %s", body, page)
		}
	}
	if key(done) != key(page) || len(p.of("/pagerduty")) > 4 {
		t.Errorf("%d messages to PagerDuty", len(p.of("/pagerduty")))
	}
	for _, body := range p.of("/slack") {
		if strings.Contains(body, "<!channel>") {
			t.Errorf("Slack gets a mention: %s", body)
		}
	}
	for _, body := range p.of("/teams") {
		if strings.Contains(body, "[ok](http") {
			t.Errorf("Teams gets a link: %s", body)
		}
	}
	for _, path := range []string{"/slack", "/teams", "/hook", "/pagerduty"} {
		if all := strings.Join(p.of(path), ""); strings.Contains(all, "anary") {
			t.Errorf("%s is notified of a canary: %s", path, all)
		}
	}
}
