// Package preview serves a page that draws the dashboards from a Prometheus, so that they can be looked at without a Grafana.
//
// It promises that it only reads: it passes instant and range queries to one Prometheus and nothing else, bounds their number, time and
// size, follows no redirect, answers only requests that name its own address, and loads nothing from elsewhere. It is not Grafana: it
// draws what the boards' panels ask for in its own way.
package preview

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/dashboards"
)

//go:embed assets
var assets embed.FS

const (
	atOnce  = 8
	timeout = 30 * time.Second
	maxSize = 32 << 20 // of Prometheus' answer
	longest = 16 << 10 // query
)

// parameters of a query that are passed on.
var parameters = []string{"query", "start", "end", "step", "time"}

// Options of the page.
type Options struct {
	Prometheus string        // base address, http or https
	Scrape     time.Duration // its scrape interval: $__rate_interval is four of it
	Hosts      []string      // host names besides localhost under which a browser may ask for it
}

type server struct {
	base   *url.URL
	o      Options
	client *http.Client
	slots  chan struct{}
}

// Handler serves the page. The error names what is wrong with the options.
func Handler(o Options) (http.Handler, error) {
	base, err := url.Parse(o.Prometheus)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("address of Prometheus %q: write it as http://host:9090", redacted(base, o.Prometheus))
	}
	if o.Scrape <= 0 {
		return nil, fmt.Errorf("scrape interval must be positive, got %s", o.Scrape)
	}
	s := &server{base: base, o: o, slots: make(chan struct{}, atOnce), client: &http.Client{Timeout: timeout, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("it redirects; name the final address")
	}}}
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /api/settings", s.settings)
	mux.HandleFunc("GET /api/boards/{uid}", s.board)
	mux.HandleFunc("GET /api/query", s.query("query"))
	mux.HandleFunc("GET /api/query_range", s.query("query_range"))
	return s.guard(mux), nil
}

func redacted(u *url.URL, text string) string {
	if u != nil {
		return u.Redacted()
	}
	return text
}

// guard refuses requests under a foreign name, by which a web page could read what the loopback serves.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		ip := net.ParseIP(strings.Trim(host, "[]"))
		ours := host == "localhost" || ip != nil
		for _, h := range s.o.Hosts {
			ours = ours || strings.EqualFold(h, host)
		}
		if !ours {
			http.Error(w, fmt.Sprintf("host %q is not this server's: open it by its address", host), http.StatusForbidden)
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func (s *server) settings(w http.ResponseWriter, _ *http.Request) {
	all, err := dashboards.All()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answer(w, map[string]any{"boards": all, "prometheus": s.base.Redacted(), "rate_interval_s": (4 * s.o.Scrape).Seconds()})
}

func (s *server) board(w http.ResponseWriter, r *http.Request) {
	b, err := dashboards.Find(r.PathValue("uid"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	answer(w, b.JSON)
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a reader that has gone
}

// query passes a query on.
func (s *server) query(endpoint string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-ctx.Done():
			http.Error(w, "too many queries at once", http.StatusServiceUnavailable)
			return
		}
		in, out := r.URL.Query(), url.Values{}
		for _, p := range parameters {
			if v := in.Get(p); v != "" {
				out.Set(p, v)
			}
		}
		if q := out.Get("query"); q == "" || len(q) > longest {
			http.Error(w, fmt.Sprintf("query of %d bytes: 1 to %d are taken", len(q), longest), http.StatusBadRequest)
			return
		}
		to := s.base.JoinPath("api/v1", endpoint)
		to.RawQuery = out.Encode()
		ask, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		res, err := s.client.Do(ask)
		if err != nil {
			var cause *url.Error
			if errors.As(err, &cause) { // its text has the address with the password
				err = cause.Err
			}
			http.Error(w, fmt.Sprintf("Prometheus at %s: %v", s.base.Redacted(), err), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(io.LimitReader(res.Body, maxSize+1))
		if err != nil || len(body) > maxSize {
			http.Error(w, fmt.Sprintf("Prometheus' answer has more than %d MiB or broke off (%v): choose a shorter range", maxSize>>20, err), http.StatusBadGateway)
			return
		}
		if !json.Valid(body) {
			http.Error(w, fmt.Sprintf("%s answers %s without JSON: is it a Prometheus?", s.base.Redacted(), res.Status), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(res.StatusCode)
		_, _ = w.Write(body)
	}
}

// Reachable asks the Prometheus of the options one cheap query. The error says why it does not answer.
func Reachable(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(o.Prometheus, "/")+"/api/v1/query?query=1", nil)
	if err != nil {
		return err
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s to a query", res.Status)
	}
	return nil
}
