package storm

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator"
)

// The words that make the test binary one of the programs that the benchmark starts.
const (
	asRemediator = "remediator"
	asBus        = "bus"
)

func TestMain(m *testing.M) {
	programs := map[string]func([]string) error{asRemediator: runRemediator, asBus: runBus}
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		if err := programs[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func runRemediator(args []string) error {
	var policies string
	o := remediator.Options{Elect: true, Lease: lease, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	f := flag.NewFlagSet(asRemediator, flag.ContinueOnError)
	f.StringVar(&o.NATS, "nats", "", "")
	f.StringVar(&o.Cluster, "cluster", "", "")
	f.StringVar(&o.Namespace, "namespace", "", "")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "")
	f.StringVar(&policies, "policies", "", "")
	f.StringVar(&o.Metrics, "metrics", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	o.Policies = []string{policies}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return remediator.Run(ctx, o)
}

func runBus(args []string) error {
	var o bus.ServerOptions
	f := flag.NewFlagSet(asBus, flag.ContinueOnError)
	f.IntVar(&o.Port, "port", 0, "")
	f.StringVar(&o.Dir, "dir", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	s, err := bus.StartServer(o)
	if err != nil {
		return err
	}
	defer s.Stop()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	return nil
}

func TestFiveOfFiftyNodesFailAndEachGetsItsVerdict(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), Options{Nodes: 50, Gangs: 5, Fill: 1, Cases: []string{"nodes-500"}, Remediators: 2, Remediator: []string{self, asRemediator},
		Bus: []string{self, asBus}, Duration: time.Second, Rate: 10, Limit: 30 * time.Second, Settle: 5 * time.Second, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	c := report.Cases[0]
	if c.Failed != 5 || c.Quarantined != 5 || c.Unaccounted != 0 {
		t.Errorf("of %d failed nodes %d are quarantined and %d unaccounted (%v), want 5 of 5", c.Failed, c.Quarantined, c.Unaccounted, c.Open)
	}
	// Each failed node publishes its Xid; four of five lose a rank too.
	if c.Events != 9 || c.EventsLost != 0 {
		t.Errorf("%d events, %d lost (%v), want 9 and 0", c.Events, c.EventsLost, c.LostBy)
	}
	if c.Incidents < 1 || c.CPUTotal <= 0 || c.RSS <= 0 || c.RequestsByVerb["patch"] <= 0 || c.P50 <= 0 || c.P50 > c.P95 || c.P95 > c.Last {
		t.Errorf("nothing was measured: %+v", c)
	}
}

func TestACaseIsWrittenWithTheFieldsThatItsReadersKnow(t *testing.T) {
	raw, err := json.Marshal(Report{Cases: []Case{{}}})
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Cases []map[string]any }
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"case", "nodes", "failed", "p50_s", "p95_s", "last_s", "cpu_s_per_incident", "rss_mib", "api_requests_per_incident",
		"events", "events_lost", "unaccounted"} {
		if _, ok := got.Cases[0][field]; !ok {
			t.Errorf("a case has no field %s", field)
		}
	}
}

func TestTheFleetHasGangsOfEverySizeThatFitAndLeavesSparesInEachRack(t *testing.T) {
	for _, tc := range []struct{ nodes, gangs, largest, seats int }{
		{5000, 300, 512, 4276},
		{1000, 60, 128, 756},
		{50, 5, 16, 40},
		{3, 3, 1, 3},
	} {
		f, err := newFleet(tc.nodes, tc.gangs, 2)
		if err != nil {
			t.Fatal(err)
		}
		taken, largest, seats := map[int]bool{}, 0, 0
		for _, g := range f.gangs {
			largest, seats = max(largest, len(g.members)), seats+len(g.members)
			for _, n := range g.members {
				if taken[n] || n%rackNodes >= rackNodes-spares {
					t.Fatalf("%d nodes: node %d is taken twice or a spare", tc.nodes, n)
				}
				taken[n] = true
			}
		}
		if len(f.gangs) != tc.gangs || largest != tc.largest || seats != tc.seats || f.pods() != seats+2*tc.nodes {
			t.Errorf("%d nodes: %d gangs, the largest of %d pods, %d in all; want %d, %d, %d", tc.nodes, len(f.gangs), largest, seats, tc.gangs, tc.largest, tc.seats)
		}
	}
	if _, err := newFleet(2, 3, 0); err == nil || !strings.Contains(err.Error(), "3 gangs do not fit on 2 nodes") {
		t.Errorf("three gangs on two nodes: %v", err)
	}
}

func TestRequestsAreNamedAsKubernetesNamesThem(t *testing.T) {
	for line, want := range map[string]string{
		"GET /api/v1/nodes?limit=500":                            "list nodes",
		"GET /api/v1/nodes?watch=true":                           "watch nodes",
		"GET /api/v1/nodes/n1":                                   "get nodes",
		"PATCH /api/v1/nodes/n1/status":                          "patch nodes/status",
		"POST /api/v1/namespaces/a/pods/p/eviction":              "create pods/eviction",
		"DELETE /api/v1/namespaces/a/configmaps/c":               "delete configmaps",
		"GET /api/v1/namespaces/a":                               "get namespaces",
		"PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/l": "update leases",
		"GET /apis/batch/v1/jobs":                                "list jobs",
		"GET /apis/batch/v1":                                     "get other",
		"GET /readyz":                                            "get other",
		"POST /apis/authentication.k8s.io/v1/tokenreviews":       "create tokenreviews",
	} {
		method, path, _ := strings.Cut(line, " ")
		if got := requestOf(httptest.NewRequest(method, path, http.NoBody)).String(); got != want {
			t.Errorf("%s is %q, want %q", line, got, want)
		}
	}
}

func TestOnlyAnAnswerAboutTheNodeCountsAsRefusal(t *testing.T) {
	held := time.Now()
	guarded := record{State: "cordoned", Waiting: "guard breaker: 25 of 25"}
	guarded.Wait.Reason = "guard/breaker"
	for name, tc := range map[string]struct {
		r    record
		want string
	}{
		"a guard holds it back":                {record{State: "correlated", Waiting: "guard breaker: 25 of 25", HeldAt: held}, "guard breaker: 25 of 25"},
		"a guard holds back what joined it":    {guarded, "guard breaker: 25 of 25"},
		"a policy refused it":                  {record{State: "closed", Outcome: "refused", Reason: "not opted in"}, "refused: not opted in"},
		"it waits for a node after a cordon":   {record{State: "cordoned", Waiting: "no equivalent node is free"}, ""},
		"it is at work":                        {record{State: "planned"}, ""},
		"it says that it quarantined the node": {record{State: "closed", Outcome: "quarantined", Reason: "no job ran there"}, ""},
	} {
		if got := tc.r.refusal(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestANodeWithoutAVerdictCountsWithTheWholeLimit(t *testing.T) {
	v := &verdicts{failed: map[string]time.Time{}, quarantined: map[string]time.Time{}, refused: map[string]time.Time{}, why: map[string]string{},
		incidents: map[string]record{}, stored: map[string]json.RawMessage{}}
	began := time.Now()
	for _, n := range []string{"a", "b", "c", "d"} {
		v.fail(n, began)
	}
	v.sawQuarantine("a", began.Add(time.Second))
	v.sawQuarantine("z", began) // did not fail
	var r record
	if err := json.Unmarshal([]byte(`{"id":"i","state":"correlated","waiting":"guard breaker","held_at":"2026-01-01T00:00:00Z","cordons":["d"],
		"faults":[{"node":"b"},{"node":"d"}]}`), &r); err != nil {
		t.Fatal(err)
	}
	v.sawRecord(r, nil, began.Add(2*time.Second))
	m := measured{tally: v.tally(), o: Options{Limit: time.Minute}, failed: 4, lost: map[string]float64{"never stored": 2}}
	c := m.result(&scenario{name: "x", breaker: unlimited, last: 3.5})
	if c.Quarantined != 1 || c.Refused != 1 || c.Unaccounted != 2 || !slices.Equal(c.Open, []string{"c", "d"}) {
		t.Errorf("%d quarantined, %d refused, %d unaccounted %v", c.Quarantined, c.Refused, c.Unaccounted, c.Open)
	}
	if c.P50 != 2 || c.P95 != 60 || c.Last != 60 {
		t.Errorf("p50 %v, p95 %v, last %v; want 2, 60 and 60", c.P50, c.P95, c.Last)
	}
	want := []string{"last node quarantined or refused, s", "nodes unaccounted", "healthy nodes quarantined", "events lost", "failed nodes quarantined"}
	if got := c.Missed(); !slices.Equal(got, want) {
		t.Errorf("missed %q, want %q", got, want)
	}
}

func TestARefusedAnswerIsCountedBesideItsRequest(t *testing.T) {
	m := measured{tally: tally{incidents: 2}, requests: map[request]int{{verb: "patch", resource: "nodes"}: 6, {verb: "patch", resource: "nodes", code: 409}: 1}}
	c := m.result(&scenario{name: "x", breaker: unlimited, last: 3.5})
	if c.Requests != 3 || c.RequestsByVerb["patch"] != 3 || c.RequestsByKind["patch nodes"] != 6 || c.RefusedByKind["patch nodes: 409"] != 1 || len(c.RequestsByKind) != 1 {
		t.Errorf("%v requests an incident, by kind %v, refused %v", c.Requests, c.RequestsByKind, c.RefusedByKind)
	}
}

func TestTheCPUOfAStormIsNotZeroWhereTheIdleShareIsTooLarge(t *testing.T) {
	for name, c := range map[string]struct{ cpu, idle, want float64 }{
		"idle share below what was used": {68, 0.5, 18},
		"idle share above what was used": {68, 0.75, 68},
	} {
		if got := (measured{cpu: c.cpu, idle: c.idle, window: 100 * time.Second}).stormCPU(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
