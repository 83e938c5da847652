package remediator

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pitcrew/pitcrew/remediator/incident"
)

// waits exports what incidents wait for, and how the limits stand, as they are when somebody asks.
type waits struct{ m *metrics }

var (
	waitingDesc     = prometheus.NewDesc("pitcrew_incident_waiting_seconds", "How long the incident that has waited longest for this reason has waited.", []string{"reason"}, nil)
	waitersDesc     = prometheus.NewDesc("pitcrew_incidents_waiting", "Incidents that wait, by reason.", []string{"reason"}, nil)
	personDesc      = prometheus.NewDesc("pitcrew_incidents_need_person", "Open incidents that do not go on without a person.", nil, nil)
	quarantinedDesc = prometheus.NewDesc("pitcrew_nodes_quarantined", "Nodes that carry Pitcrew's quarantine, by policy: those that the policy speaks for.", []string{"policy"}, nil)
	breakerDesc     = prometheus.NewDesc("pitcrew_breaker_limit_nodes", "Nodes that the policy's breaker lets Pitcrew hold cordoned.", []string{"policy"}, nil)
	openDesc        = prometheus.NewDesc("pitcrew_breaker_open", "1 while the policy's breaker refuses new cordons.", []string{"policy"}, nil)
	budgetDesc      = prometheus.NewDesc("pitcrew_action_budget_used", "Disruptive actions that count against the policy's budget now.", []string{"policy"}, nil)
	budgetMaxDesc   = prometheus.NewDesc("pitcrew_action_budget_limit", "Disruptive actions that the policy's budget allows.", []string{"policy"}, nil)
	actingDesc      = prometheus.NewDesc("pitcrew_incidents_acting", "Incidents that hold one of the policy's places.", []string{"policy"}, nil)
)

func (waits) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{waitingDesc, waitersDesc, personDesc, quarantinedDesc, breakerDesc, openDesc, budgetDesc, budgetMaxDesc, actingDesc} {
		ch <- d
	}
}

func (w waits) Collect(ch chan<- prometheus.Metric) {
	e := w.m.engine.Load()
	if e == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	now := time.Now()
	longest, count := map[incident.Reason]float64{}, map[incident.Reason]float64{}
	for _, x := range e.Waits() {
		count[x.Reason]++
		longest[x.Reason] = max(longest[x.Reason], now.Sub(x.Since).Seconds())
	}
	for reason, n := range count {
		gauge(waitersDesc, n, string(reason))
		gauge(waitingDesc, longest[reason], string(reason))
	}
	gauge(personDesc, float64(e.NeedPerson()))
	j, ok := e.Judge.(*judge)
	if !ok {
		return
	}
	for _, l := range j.limits(e.Ledger.Book(), now) {
		gauge(quarantinedDesc, float64(l.quarantined), l.policy)
		gauge(breakerDesc, float64(l.breaker), l.policy)
		open := 0.0
		if l.open {
			open = 1
		}
		gauge(openDesc, open, l.policy)
		gauge(budgetDesc, float64(l.used), l.policy)
		gauge(budgetMaxDesc, float64(l.budget), l.policy)
		gauge(actingDesc, float64(l.acting), l.policy)
	}
}
