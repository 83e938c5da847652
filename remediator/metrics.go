package remediator

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/notify"
)

// metrics are the remediator's own, on /metrics.
type metrics struct {
	reg       *prometheus.Registry
	closed    *prometheus.CounterVec
	children  *prometheus.CounterVec
	recovered prometheus.Histogram
	phase     *prometheus.HistogramVec
	lost      prometheus.Counter
	refused   prometheus.Counter
	dropped   *prometheus.CounterVec
	behind    *prometheus.GaugeVec
	oldest    prometheus.Gauge
	notices   *prometheus.CounterVec
	canaries  *prometheus.CounterVec
	lastSeen  *prometheus.GaugeVec
	trip      *prometheus.GaugeVec
	failing   sync.Map // hops whose last canary did not pass
	logins    *prometheus.CounterVec
	steered   *prometheus.CounterVec
	engine    atomic.Pointer[incident.Engine]
}

var secondsBuckets = []float64{.05, .1, .25, .5, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 60, 120, 300}

func newMetrics() *metrics {
	m := &metrics{
		reg:       prometheus.NewRegistry(),
		closed:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pitcrew_incidents_closed_total", Help: "Incidents closed, by outcome. Incidents of one cause count once, as their parent."}, []string{"outcome"}),
		children:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pitcrew_incident_children_closed_total", Help: "Incidents closed that a parent spoke for, by outcome."}, []string{"outcome"}),
		recovered: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "pitcrew_job_recovery_seconds", Help: "From the fault as its event dates it (the kernel's line, DCGM's sample; of a hung rank its last sign of life), or from when no guard held it back any more, to the first step of every rank past the checkpoint.", Buckets: secondsBuckets}),
		phase:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "pitcrew_incident_phase_seconds", Help: "Time that a step of an incident took.", Buckets: secondsBuckets}, []string{"state"}),
		lost:      prometheus.NewCounter(prometheus.CounterOpts{Name: "pitcrew_lost_steps_total", Help: "Optimizer steps that had to be repeated."}),
		refused:   prometheus.NewCounter(prometheus.CounterOpts{Name: "pitcrew_events_refused_total", Help: "Events that were malformed, forged or of an unknown version."}),
		dropped:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pitcrew_events_dropped_total", Help: "Events that were not dealt with, by reason: forged, malformed, set aside after it kept failing."}, []string{"reason"}),
		behind:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pitcrew_events_waiting", Help: "Events of the stream that are not dealt with yet: delivered to the remediator, or behind those in the stream."}, []string{"where"}),
		oldest:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "pitcrew_events_oldest_seconds", Help: "Age of the oldest event that was delivered and is not dealt with yet."}),
		notices:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pitcrew_notices_total", Help: "Notices by what became of them: sent, retried, failed, dropped, or unproven: taken, but not there when read back."}, []string{"receiver", "result"}),
		canaries:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pitcrew_canaries_total", Help: "Canaries by hop and result: passed, failed, or unknown: not one that this process sent. The hops are the bus and each receiver that takes canaries."}, []string{"hop", "result"}),
		lastSeen:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pitcrew_canary_last_success_timestamp_seconds", Help: "When a canary last passed the hop, Unix time. 0: never. Only a process that leads or has led has it."}, []string{"hop"}),
		trip:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pitcrew_canary_seconds", Help: "Time from the sending of the last canary that passed the hop to then."}, []string{"hop"}),
		logins:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pitcrew_nats_logins_total", Help: "Clients that NATS asked about: allowed, or why not."}, []string{"result"}),
		steered:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pitcrew_steered_pods_total", Help: "Pods that the API server asked the placement webhook about, by result: stamped, passed, malformed."}, []string{"result"}),
	}
	for _, o := range incident.Outcomes { // a series that appears with its first event hides it from increase()
		m.closed.WithLabelValues(string(o))
		m.children.WithLabelValues(string(o))
	}
	m.reg.MustRegister(m.closed, m.children, m.recovered, m.phase, m.lost, m.refused, m.dropped, m.behind, m.oldest, m.notices, m.canaries, m.lastSeen, m.trip, m.logins, m.steered, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), noted{m}, waits{m}, prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "pitcrew_incidents_open", Help: "Incidents under way. Incidents of one cause count once, as their parent."}, func() float64 { return m.open(true) }),
		prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "pitcrew_incident_children_open", Help: "Incidents under way that a parent speaks for."}, func() float64 { return m.open(false) }))
	return m
}

// open counts the incidents under way that speak for themselves, or those that do not.
func (m *metrics) open(speak bool) (n float64) {
	e := m.engine.Load()
	if e == nil {
		return 0
	}
	open, _ := e.Incidents()
	for _, i := range open {
		if (i.Parent == "" || e.Speaks(i)) == speak {
			n++
		}
	}
	return n
}

// backlog takes in what waits to be dealt with.
func (m *metrics) backlog(b bus.Queue) {
	m.behind.WithLabelValues("delivered").Set(float64(b.InFlight))
	m.behind.WithLabelValues("stream").Set(float64(b.Pending))
	m.oldest.Set(b.Oldest.Seconds())
}

func (m *metrics) notice(receiver string, r notify.Result) {
	m.notices.WithLabelValues(receiver, string(r)).Inc()
}

// watchHops makes the hops known before a canary has passed them: a receiver that never takes one is not absent.
func (m *metrics) watchHops(names []string) {
	for _, name := range names {
		m.lastSeen.WithLabelValues(name)
	}
}

// hop counts a canary. It reports the first failure in a row.
func (m *metrics) hop(name string, sent, now time.Time, err error) (fails bool) {
	if err != nil {
		m.canaries.WithLabelValues(name, "failed").Inc()
		_, before := m.failing.Swap(name, true)
		return !before
	}
	m.failing.Delete(name)
	m.canaries.WithLabelValues(name, "passed").Inc()
	m.lastSeen.WithLabelValues(name).Set(float64(now.UnixMilli()) / 1000)
	m.trip.WithLabelValues(name).Set(now.Sub(sent).Seconds())
	return false
}

func (m *metrics) observe(i *incident.Incident) {
	if len(i.Notes) > 0 {
		if n := i.Notes[len(i.Notes)-1]; n.State == i.State && n.TookS > 0 {
			m.phase.WithLabelValues(string(n.State)).Observe(n.TookS)
		}
	}
	if i.State != incident.Closed {
		return
	}
	if e := m.engine.Load(); i.Parent != "" && e != nil && !e.Speaks(i) {
		m.children.WithLabelValues(string(i.Outcome)).Inc()
	} else {
		m.closed.WithLabelValues(string(i.Outcome)).Inc()
	}
	if i.Outcome == incident.Recovered && i.FirstStep != nil {
		from := i.Began()
		if i.TakenUp.After(from) { // what a guard held back is not what Pitcrew took
			from = i.TakenUp
		}
		m.recovered.Observe(i.FirstStep.Sub(from).Seconds())
		m.lost.Add(float64(*i.LostSteps))
	}
}

var notedDesc = prometheus.NewDesc("pitcrew_events_noted_total", "Events that opened no incident, by reason.", []string{"reason"}, nil)

// noted exports the engine's count of events that opened nothing.
type noted struct{ m *metrics }

func (noted) Describe(ch chan<- *prometheus.Desc) { ch <- notedDesc }

func (n noted) Collect(ch chan<- prometheus.Metric) {
	e := n.m.engine.Load()
	if e == nil {
		return
	}
	for reason, v := range e.Noted() {
		ch <- prometheus.MustNewConstMetric(notedDesc, prometheus.CounterValue, float64(v), reason)
	}
}

// serve answers /metrics and /healthz until ctx ends, and with profiles also /debug/pprof.
func (m *metrics) serve(ctx context.Context, addr string, profiles bool) error {
	mux := http.NewServeMux()
	if profiles {
		mux.HandleFunc("/debug/pprof/", pprof.Index) // heap, allocs, mutex, block and goroutine
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	}
	mux.Handle("/metrics", promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
