package promexporter

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
	"go.uber.org/zap"
)

// endpoint serves the store at /metrics.
type endpoint struct {
	cfg   *Config
	set   component.TelemetrySettings
	store *store

	scrape sync.Mutex // one scrape makes text at a time; none holds it while it writes to a client
	packed [formats]struct {
		generation uint64
		page       []byte // gzip; never changed
	}

	server *http.Server
	stop   chan struct{}
	tasks  sync.WaitGroup
}

func newEndpoint(cfg *Config, set exporter.Settings) *endpoint {
	return &endpoint{cfg: cfg, set: set.TelemetrySettings, store: newStore(cfg, set.Logger), stop: make(chan struct{})}
}

func (e *endpoint) start(ctx context.Context, host component.Host) error {
	l, err := e.cfg.ToListener(ctx)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", e)
	if e.server, err = e.cfg.ToServer(ctx, host.GetExtensions(), e.set, mux); err != nil {
		return errors.Join(err, l.Close())
	}
	e.tasks.Go(func() { e.serve(l) })
	e.tasks.Go(e.sweep)
	return nil
}

func (e *endpoint) serve(l net.Listener) {
	if err := e.server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		e.set.Logger.Error("the Prometheus endpoint ended: nothing can be scraped until the agent restarts", zap.Error(err))
	}
}

// sweep ends what is over where nobody scrapes, and nothing comes in either.
func (e *endpoint) sweep() {
	t := time.NewTicker(e.cfg.MetricExpiration)
	defer t.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-t.C:
			e.store.served()
		}
	}
}

// patience is how long a scrape that is under way may take when the endpoint ends. A scraper that does not read holds up no restart.
const patience = time.Second

func (e *endpoint) shutdown(ctx context.Context) error {
	if e.server == nil {
		return nil
	}
	close(e.stop)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := e.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = e.server.Close()
	}
	e.tasks.Wait()
	return err
}

// ServeHTTP serves a page in the form that the scraper asks for.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	as, mime := e.negotiate(r.Header)
	w.Header().Set("Content-Type", mime)
	w.Header().Add("Vary", "Accept-Encoding")
	var page []byte
	if takesGzip(r.Header) {
		w.Header().Set("Content-Encoding", "gzip")
		page = e.gzip(as)
	} else {
		page = e.page(as)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(page)))
	_, _ = w.Write(page) // a scraper that went away has no use for an error
}

// negotiate gives the form and its content type. Protobuf is not served: what asks for it takes text as well.
func (e *endpoint) negotiate(h http.Header) (format, string) {
	negotiate := expfmt.Negotiate
	if e.cfg.EnableOpenMetrics {
		negotiate = expfmt.NegotiateIncludingOpenMetrics
	}
	switch f := negotiate(h); f.FormatType() {
	case expfmt.TypeOpenMetrics:
		return openMetrics, string(f)
	case expfmt.TypeTextPlain:
		return text, string(f)
	}
	return text, string(expfmt.NewFormat(expfmt.TypeTextPlain))
}

// takesGzip reads Accept-Encoding.
func takesGzip(h http.Header) bool {
	for _, line := range h.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(line, ",") {
			name, params, _ := strings.Cut(part, ";")
			if name = strings.TrimSpace(name); name != "gzip" && name != "*" {
				continue
			}
			q, weighted := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q=")
			if !weighted {
				return true
			}
			weight, err := strconv.ParseFloat(q, 64)
			return err == nil && weight > 0
		}
	}
	return false
}

// page joins the families' text.
func (e *endpoint) page(as format) []byte {
	e.scrape.Lock()
	defer e.scrape.Unlock()
	families, _ := e.store.served()
	var b bytes.Buffer
	e.write(&b, families, as)
	return b.Bytes()
}

var packers = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is one of the library's own
	}
	return w
}}

// gzip gives the compressed page, which is made once for each change.
func (e *endpoint) gzip(as format) []byte {
	e.scrape.Lock()
	defer e.scrape.Unlock()
	families, generation := e.store.served()
	p := &e.packed[as]
	if p.page != nil && p.generation == generation {
		return p.page
	}
	var b bytes.Buffer
	b.Grow(len(p.page) + len(p.page)/8)
	w := packers.Get().(*gzip.Writer)
	w.Reset(&b)
	e.write(w, families, as)
	_ = w.Close() // a buffer takes everything
	w.Reset(nil)
	packers.Put(w)
	p.generation, p.page = generation, b.Bytes()
	return p.page
}

// write joins the families. The store is locked for one family at a time, so that consuming waits for one at most.
func (e *endpoint) write(w interface{ Write([]byte) (int, error) }, families []*family, as format) {
	for _, f := range families {
		e.store.mu.Lock()
		part := f.encode(as, e.cfg.SendTimestamps)
		e.store.mu.Unlock()
		_, _ = w.Write(part) // a buffer takes everything
	}
	if as == openMetrics {
		_, _ = w.Write([]byte("# EOF\n"))
	}
}
