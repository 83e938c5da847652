package dashboardscmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
)

func run(t *testing.T, args ...string) (out, said string, err error) {
	t.Helper()
	c := Command()
	var o, e bytes.Buffer
	c.SetArgs(args)
	c.SetOut(&o)
	c.SetErr(&e)
	c.SilenceUsage, c.SilenceErrors = true, true
	err = c.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

func TestTheListNamesEachDashboard(t *testing.T) {
	out, _, err := run(t, "list")
	if err != nil || strings.Count(out, "\npitcrew-") != 10 {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = run(t, "list", "-o", "json")
	var all []struct{ UID string }
	if err != nil || json.Unmarshal([]byte(out), &all) != nil || len(all) != 10 || all[0].UID != "pitcrew-fleet" {
		t.Errorf("%v\n%s", err, out)
	}
	if _, _, err := run(t, "list", "-o", "xml"); err == nil {
		t.Error("output xml is taken")
	}
}

func TestExportWritesWhatGrafanaImports(t *testing.T) {
	out, _, err := run(t, "export", "fleet")
	if err != nil || !json.Valid([]byte(out)) {
		t.Errorf("%v: %.60s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "new")
	if _, said, err := run(t, "export", "--dir", dir); err != nil || !strings.Contains(said, "wrote 10 dashboards") {
		t.Errorf("%v %s", err, said)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "pitcrew-fleet.json"))
	if err != nil || string(raw) != out {
		t.Errorf("the file is not what is printed: %v", err)
	}
	for _, args := range [][]string{{"export"}, {"export", "fleet", "node"}, {"export", "flet"}} {
		if _, _, err := run(t, args...); exit.Code(err) != exit.Usage {
			t.Errorf("%v: exit code %d, %v", args, exit.Code(err), err)
		}
	}
}

func TestThePreviewWarnsIfPrometheusDoesNotAnswer(t *testing.T) {
	answers := func(code int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
		t.Cleanup(s.Close)
		return s.URL
	}
	for address, want := range map[string]string{answers(200): "", answers(200) + "/": "", answers(401): "warning: Prometheus cannot be queried: it answers 401", "http://127.0.0.1:1": "warning: Prometheus cannot be queried"} {
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		c := Command()
		var said bytes.Buffer
		c.SetArgs([]string{"preview", "--listen", "127.0.0.1:0", "--prometheus", address})
		c.SetOut(io.Discard)
		c.SetErr(&said)
		if err := c.ExecuteContext(ctx); err != nil {
			t.Error(err)
		}
		stop()
		if got := said.String(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", address, got, want)
		}
	}
}

func TestThePreviewServesUntilItIsStopped(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c := Command()
	r, w := io.Pipe()
	c.SetArgs([]string{"preview", "--listen", "127.0.0.1:0"})
	c.SetOut(w)
	done := make(chan error, 1)
	go func() { done <- c.ExecuteContext(ctx) }()
	address, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Get(strings.TrimSpace(address))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", address, res.Status)
	}
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
}
