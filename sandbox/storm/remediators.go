package storm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

// remediators are the processes under test, and what they used.
type remediators struct {
	box   *sandbox.Sandbox
	names []string
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu    sync.Mutex
	last  map[string]usage // by name, as last sampled
	peak  float64          // RSS of the largest, MiB, since the last call of resetPeak
	ports map[string]int
	noted map[string]map[string]float64 // by name: events that were dropped, by reason, as last scraped
}

// usage is what a process has used.
type usage struct {
	cpu float64 // seconds, user and system
	rss float64 // MiB
}

// startRemediators starts n of them; they elect a leader among themselves.
func startRemediators(box *sandbox.Sandbox, run string, n int, o Options, nats, kubeconfig, policies string) (*remediators, error) {
	ctx, stop := context.WithCancel(context.Background())
	r := &remediators{box: box, stop: stop, last: map[string]usage{}, ports: map[string]int{}, noted: map[string]map[string]float64{}}
	for k := range n {
		port, err := freeport.Claim()
		if err != nil {
			r.close()
			return nil, err
		}
		name := fmt.Sprintf("remediator-%s-%d", run, k)
		argv := append(slices.Clone(o.Remediator), "--nats", nats, "--cluster", clusterName, "--namespace", systemNamespace, "--kubeconfig", kubeconfig,
			"--policies", policies, "--metrics", "127.0.0.1:"+strconv.Itoa(port))
		if o.Profiles != "" {
			argv = append(argv, "--pprof")
		}
		if err := box.StartProcess("", name, argv, nil); err != nil {
			r.close()
			return nil, err
		}
		r.names, r.ports[name] = append(r.names, name), port
	}
	r.ended.Go(func() { r.follow(ctx) })
	return r, nil
}

func (r *remediators) close() {
	r.stop()
	r.ended.Wait()
	var all sync.WaitGroup
	for _, name := range r.names {
		all.Go(func() { _ = r.box.StopProcess("", name) })
	}
	all.Wait()
}

// follow samples what the processes use, and what they say that they dropped.
func (r *remediators) follow(ctx context.Context) {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for k := 0; ; k++ {
		r.sample()
		if k%5 == 0 {
			r.scrape(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (r *remediators) sample() {
	for _, p := range r.box.Processes() {
		if !p.Running || !strings.HasPrefix(p.Name, "remediator-") {
			continue
		}
		u, err := usageOf(p.PID)
		if err != nil {
			continue
		}
		r.mu.Lock()
		if _, mine := r.ports[p.Name]; mine {
			r.last[p.Name], r.peak = u, max(r.peak, u.rss)
		}
		r.mu.Unlock()
	}
}

// cpu is the processor time of all, those that were killed included.
func (r *remediators) cpu() (seconds float64) {
	r.sample()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range r.last {
		seconds += u.cpu
	}
	return seconds
}

func (r *remediators) resetPeak() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peak = 0
}

func (r *remediators) peakRSS() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.peak
}

// died reports a process that ended though nobody killed it.
func (r *remediators) died(killed string) error {
	for _, p := range r.box.Processes() {
		if _, mine := r.ports[p.Name]; mine && p.Name != killed {
			if err := p.Died(); err != nil {
				return err
			}
		}
	}
	return nil
}

// leader is the name of the process that holds the lease.
func (r *remediators) leader(ctx context.Context) (string, error) {
	l, err := r.box.Client().CoordinationV1().Leases(systemNamespace).Get(ctx, "pitcrew-remediator", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "", fmt.Errorf("nobody leads")
	}
	parts := strings.Split(*l.Spec.HolderIdentity, "/") // host/pid/start
	for _, p := range r.box.Processes() {
		if _, mine := r.ports[p.Name]; mine && p.Running && len(parts) > 1 && parts[1] == strconv.Itoa(p.PID) {
			return p.Name, nil
		}
	}
	return "", fmt.Errorf("the holder of the lease, %s, is none of the benchmark's remediators", *l.Spec.HolderIdentity)
}

// kill ends a process at once, after a last sample of what it had used.
func (r *remediators) kill(name string) error {
	r.sample()
	return r.box.SignalProcess("", name, syscall.SIGKILL)
}

// droppedReasons are the reasons for which an event is lost: it might have been acted on, and was not.
var droppedReasons = map[string]bool{"stale": true, "forbidden": true}

// scrape reads the counters of events that were not dealt with.
func (r *remediators) scrape(ctx context.Context) {
	for name, port := range r.ports {
		body, err := get(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), 2*time.Second)
		if err != nil {
			continue // not up yet, or killed
		}
		noted := map[string]float64{}
		for in := bufio.NewScanner(bytes.NewReader(body)); in.Scan(); {
			line, value, ok := strings.Cut(in.Text(), " ")
			v, err := strconv.ParseFloat(value, 64)
			if !ok || err != nil || strings.HasPrefix(line, "#") {
				continue
			}
			for _, prefix := range []string{"pitcrew_events_noted_total", "pitcrew_events_refused_total", "pitcrew_events_dropped_total", "pitcrew_events_set_aside_total"} {
				if metric, labels, _ := strings.Cut(line, "{"); metric == prefix {
					noted[strings.TrimSuffix(strings.TrimPrefix(metric, "pitcrew_events_"), "_total")+" "+strings.Trim(labels, "}")] = v
				}
			}
		}
		r.mu.Lock()
		r.noted[name] = noted
		r.mu.Unlock()
	}
}

// notes are the events that opened nothing, by reason, over all processes; dropped are those among them that are lost.
func (r *remediators) notes(ctx context.Context) (all map[string]float64, dropped float64) {
	r.scrape(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	all = map[string]float64{}
	for _, noted := range r.noted {
		for reason, n := range noted {
			all[reason] += n
		}
	}
	for reason, n := range all {
		family, labels, _ := strings.Cut(reason, " ")
		value := strings.Trim(strings.TrimPrefix(labels, "reason="), `"`)
		if family != "noted" || droppedReasons[value] {
			dropped += n
		}
	}
	return all, dropped
}

func get(ctx context.Context, url string, within time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// clockTicks is the unit of /proc/<pid>/stat on Linux.
const clockTicks = 100

// usageOf reads what a process has used.
func usageOf(pid int) (u usage, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	at := bytes.LastIndexByte(raw, ')') // the name before it may hold anything
	fields := strings.Fields(string(raw[at+1:]))
	if at < 0 || len(fields) < 22 {
		return u, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	number := func(i int) float64 {
		v, bad := strconv.ParseFloat(fields[i], 64)
		if bad != nil && err == nil {
			err = bad
		}
		return v
	}
	u.cpu = (number(11) + number(12)) / clockTicks // utime, stime
	u.rss = number(21) * float64(os.Getpagesize()) / (1 << 20)
	return u, err
}
