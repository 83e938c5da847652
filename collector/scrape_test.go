//go:build accelerators

package collector

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
)

// chips serves a page as an exporter of accelerators does. Times that the page says are of the scrape.
type chips struct {
	mu   sync.Mutex
	page string
}

var pageTime = regexp.MustCompile(`(?m) 17\d{11}$`)

func (e *chips) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(pageTime.ReplaceAllString(e.page, fmt.Sprint(" ", time.Now().UnixMilli()))))
}

// change edits the page; what is not there to be edited is an error.
func (e *chips) change(t *testing.T, pattern, with string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	re := regexp.MustCompile("(?m)" + pattern)
	if !re.MatchString(e.page) {
		t.Fatalf("the page has no %s", pattern)
	}
	e.page = re.ReplaceAllString(e.page, with)
}

func TestWhatTheStockReceiverScrapesOfAnotherMakersExporterIsAnEventOnTheBus(t *testing.T) {
	type change struct{ pattern, with, signal, gpu, pod string }
	for file, c := range map[string]struct {
		well    [2]string // makes all of the page healthy
		changes []change
	}{
		"ascend.prom": {
			[2]string{`(npu_chip_info_health_status\{.*id="1".*\}) 0`, "$1 1"},
			[]change{
				{`(npu_chip_info_health_status\{.*id="1".*\}) 1`, "$1 0", "gpu/unhealthy", "NPU-185011D4-21E04718-93B2ED94-14CC040A-BF102003", "llm-0"},
				{`(npu_chip_info_hbm_ecc_total_double_bit_error_cnt\{.*\}) 3`, "$1 5", "gpu/ecc", "NPU-185011D4-21104518-A0C4ED94-14CC040A-56102003", ""},
				{`machine_npu_nums 2|^npu_chip_info_.*,id="0",.*\n`, "", "", "", ""},
				{`\z`, "machine_npu_nums 1\n", "gpu/lost", "NPU-185011D4-21104518-A0C4ED94-14CC040A-56102003", ""},
			},
		},
		"amd.prom": {
			[2]string{`(gpu_health\{.*gpu_id="1".*\}) 0`, "$1 1"},
			[]change{
				{`(gpu_ecc_uncorrect_total\{.*\}) 0`, "$1 1", "gpu/ecc", "AMD-692351000002", "llm-0"},
				{`(gpu_health\{.*gpu_id="1".*\}) 1`, "$1 0", "gpu/unhealthy", "AMD-692351000002", "llm-0"},
				{`^.*gpu_id="0".*\n`, "", "", "", ""},
				{`(gpu_nodes_total\{.*\}) 2`, "$1 1", "gpu/lost", "AMD-692351000001", ""},
			},
		},
	} {
		t.Run(file, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join("accelerators", "testdata", file))
			if err != nil {
				t.Fatal(err)
			}
			e := &chips{page: string(raw)}
			e.change(t, c.well[0], c.well[1])
			web := httptest.NewServer(e)
			t.Cleanup(web.Close)
			s := bustest.Server(t)
			defer s.Stop()
			surround(t, t.TempDir(), s.URL())
			t.Setenv("PITCREW_PROMETHEUS_INTERVAL", "0s")
			t.Setenv(ScrapeEnv, "["+strings.TrimPrefix(web.URL, "http://")+"]")
			t.Setenv("PITCREW_SCRAPE_INTERVAL", "100ms")
			b := bustest.Connect(t, s.URL())
			defer b.Close()
			defer run(t, Agent)()

			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			heard, ended := make(chan event.Event, 16), make(chan error, 1)
			go func() {
				ended <- b.Events(ctx, "test", func(_ context.Context, d bus.Delivery) error { heard <- d.Event; return nil },
					func(subject string, err error) { t.Errorf("%s: %v", subject, err) })
			}()
			for ; !strings.Contains(scrape(t), `pitcrew_gpu_health_ratio{`); time.Sleep(20 * time.Millisecond) {
				if ctx.Err() != nil {
					t.Fatalf("nothing was scraped:\n%s", scrape(t))
				}
			}
			if n := len(heard); n > 0 {
				t.Fatalf("%d events of healthy accelerators: %+v", n, <-heard)
			}
			for _, x := range c.changes {
				e.change(t, x.pattern, x.with)
				if x.signal == "" {
					continue
				}
				select {
				case got := <-heard:
					d := got.Data
					if d.Cause.Signal() != x.signal || d.Target.GPU != x.gpu || d.Target.Pod != x.pod || d.Target.Node != "n1" || got.Type != event.Fault {
						t.Errorf("heard %s of %+v, want %s of %s, pod %q", d.Cause.Signal(), d.Target, x.signal, x.gpu, x.pod)
					}
				case <-ctx.Done():
					t.Fatalf("no %s\n%s", x.signal, scrape(t))
				}
			}
			time.Sleep(time.Second) // scrapes enough for one more, were there to be one
			web.Close()             // an exporter that falls silent is neither a fault nor health
			time.Sleep(time.Second)
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			for len(heard) > 0 {
				got := <-heard
				t.Errorf("one too many: %s %s of %+v", got.Type, got.Data.Cause.Signal(), got.Data.Target)
			}
		})
	}
}
