package preview

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func get(t *testing.T, h http.Handler, path, host string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// onto gives a handler before a Prometheus that answers with f.
func onto(t *testing.T, f http.HandlerFunc) http.Handler {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	h, err := Handler(Options{Prometheus: strings.Replace(s.URL, "http://", "http://user:secret@", 1), Scrape: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestThePageAndWhatItLoadsAreServed(t *testing.T) {
	h := onto(t, func(http.ResponseWriter, *http.Request) {})
	page := get(t, h, "/", "localhost:7070")
	body := text(t, page)
	if page.StatusCode != 200 || !strings.Contains(page.Header.Get("Content-Security-Policy"), "default-src 'self'") {
		t.Fatalf("%d %v", page.StatusCode, page.Header)
	}
	found := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(body, -1)
	if len(found) < 5 {
		t.Errorf("the page loads only %v", found)
	}
	for _, m := range found {
		if r := get(t, h, "/"+m[1], "localhost"); r.StatusCode != 200 {
			t.Errorf("%s: %d: everything must be its own", m[1], r.StatusCode)
		}
	}
	if s := text(t, get(t, h, "/api/settings", "127.0.0.1")); !strings.Contains(s, "pitcrew-fleet") || strings.Contains(s, "secret") || !strings.Contains(s, `"rate_interval_s":120`) {
		t.Errorf("settings: %s", s)
	}
	if s := text(t, get(t, h, "/api/boards/pitcrew-fleet", "localhost")); !strings.Contains(s, "templating") {
		t.Errorf("board: %.80s", s)
	}
	if r := get(t, h, "/api/boards/nonsense", "localhost"); r.StatusCode != 404 {
		t.Errorf("an unknown board: %d", r.StatusCode)
	}
}

func TestOnlyQueriesReachPrometheus(t *testing.T) {
	var seen []string
	h := onto(t, func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.URL.RequestURI())
		_, _ = w.Write([]byte(`{"status":"success","data":{"result":[]}}`))
	})
	if r := get(t, h, "/api/query?query=up&time=7&evil=1", "localhost"); r.StatusCode != 200 {
		t.Errorf("a query: %d", r.StatusCode)
	}
	for _, path := range []string{"/api/admin/tsdb/delete_series?match[]=up", "/api/series?match[]=up", "/api/query/../admin", "/api/query", "/api/query?query=" + strings.Repeat("a", longest+1)} {
		if r := get(t, h, path, "localhost"); r.StatusCode == 200 && r.Header.Get("Content-Type") == "application/json" {
			t.Errorf("%s: %d", path, r.StatusCode)
		}
	}
	post := httptest.NewRequest(http.MethodPost, "/api/query?query=up", nil)
	post.Host = "localhost"
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, post); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("a POST: %d", w.Code)
	}
	if len(seen) != 1 || seen[0] != "GET /api/v1/query?query=up&time=7" {
		t.Errorf("Prometheus saw %v", seen)
	}
}

func TestAForeignHostIsRefused(t *testing.T) {
	h := onto(t, func(http.ResponseWriter, *http.Request) {})
	for host, want := range map[string]int{"evil.example": 403, "localhost.evil.example:80": 403, "localhost:1": 200, "127.0.0.1:7070": 200, "[::1]:7070": 200} {
		if r := get(t, h, "/api/settings", host); r.StatusCode != want {
			t.Errorf("%s: %d, want %d", host, r.StatusCode, want)
		}
	}
}

func TestAPrometheusThatMisbehavesIsNamedWithoutItsPassword(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		says   string
	}{
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, "it redirects"},
		"no JSON": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "is it a Prometheus?"},
		"too much": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat(" ", maxSize+1)))
		}, "choose a shorter range"},
		"breaks off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
		}, "broke off"},
	} {
		r := get(t, onto(t, c.answer), "/api/query?query=up", "localhost")
		if s := text(t, r); r.StatusCode != http.StatusBadGateway || !strings.Contains(s, c.says) || strings.Contains(s, "secret") {
			t.Errorf("%s: %d %s", name, r.StatusCode, s)
		}
	}
}

func TestQueriesAtOnceAreBounded(t *testing.T) {
	var now, most atomic.Int64
	h := onto(t, func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		now.Add(-1)
		_, _ = w.Write([]byte(`{"status":"success"}`))
	})
	var all sync.WaitGroup
	for range 4 * atOnce {
		all.Go(func() {
			if r := get(t, h, "/api/query?query="+url.QueryEscape("up"), "localhost"); r.StatusCode != 200 {
				t.Errorf("%d", r.StatusCode)
			}
		})
	}
	all.Wait()
	if most.Load() > atOnce || most.Load() < 2 {
		t.Errorf("%d queries at once, at most %d are allowed", most.Load(), atOnce)
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	for _, o := range []Options{{Prometheus: "localhost:9090", Scrape: time.Second}, {Prometheus: "file:///etc/passwd", Scrape: time.Second}, {Prometheus: "http://x:9090"}, {}} {
		if _, err := Handler(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}
