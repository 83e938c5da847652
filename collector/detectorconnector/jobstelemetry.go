package detectorconnector

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/metric"

	"github.com/pitcrew/pitcrew/detector/job"
)

// jobsMetrics are the engine's counts as the gateway's own metrics (metadata.yaml).
type jobsMetrics struct{ reg metric.Registration }

// jobsCounters and jobsGauges are the rows of metadata.yaml that belong to scope jobs.
var (
	jobsCounters = []struct {
		name, unit, about string
		of                func(job.Counts) int64
	}{
		{"pitcrew.detector.jobs.samples", "{sample}", "Steps of ranks, or parts of them, that were taken in", func(c job.Counts) int64 { return c.Samples }},
		{"pitcrew.detector.jobs.rounds", "{round}", "Steps of a role that were closed", func(c job.Counts) int64 { return c.Rounds }},
		{"pitcrew.detector.jobs.rounds.partial", "{round}", "Rounds without a rank that was waited for", func(c job.Counts) int64 { return c.Partial }},
		{"pitcrew.detector.jobs.findings", "{finding}", "Findings about ranks and jobs, ends included", func(c job.Counts) int64 { return c.Findings }},
		{"pitcrew.detector.jobs.brief", "{finding}", "Findings that were over before they were said", func(c job.Counts) int64 { return c.Brief }},
		{"pitcrew.detector.jobs.malformed", "{sample}", "Samples that name no rank or step", func(c job.Counts) int64 { return c.Malformed }},
		{"pitcrew.detector.jobs.late", "{sample}", "Samples of a round that was closed", func(c job.Counts) int64 { return c.Late }},
		{"pitcrew.detector.jobs.unjoined", "{sample}", "Values whose step is not known", func(c job.Counts) int64 { return c.Unjoined }},
		{"pitcrew.detector.jobs.contested", "{sample}", "Samples of a rank that another pod claims to be, or of a world of another size", func(c job.Counts) int64 { return c.Contested }},
		{"pitcrew.detector.jobs.evicted", "{attempt}", "Attempts dropped at a bound", func(c job.Counts) int64 { return c.Evicted }},
		{"pitcrew.detector.jobs.refused", "{sample}", "Samples of ranks beyond the bound", func(c job.Counts) int64 { return c.Refused }},
		{"pitcrew.detector.jobs.muted", "{finding}", "Findings held back by a mute", func(c job.Counts) int64 { return c.Muted }},
		{"pitcrew.detector.jobs.accepted", "{finding}", "Findings whose level people accepted", func(c job.Counts) int64 { return c.Accepted }},
		{"pitcrew.detector.jobs.unacceptable", "{finding}", "Findings without a level that people tried to accept", func(c job.Counts) int64 { return c.Unacceptable }},
		{"pitcrew.detector.classes.steps", "{step}", "Steps of jobs that classes were taught", func(c job.Counts) int64 { return c.ClassSteps }},
		{"pitcrew.detector.classes.comparisons", "{comparison}", "Comparisons of a class with one of another driver or framework", func(c job.Counts) int64 { return c.Comparisons }},
		{"pitcrew.detector.classes.evicted", "{run}", "Runs of classes dropped at a bound", func(c job.Counts) int64 { return c.ClassEvicted }},
		{"pitcrew.detector.classes.unclear", "{job}", "Times that a job's ranks told of no workload that can be read, or of several", func(c job.Counts) int64 { return c.Unclear }},
	}
	jobsGauges = []struct {
		name, unit, about string
		of                func(job.Counts) int64
	}{
		{"pitcrew.detector.jobs.attempts", "{attempt}", "Attempts of jobs that are known", func(c job.Counts) int64 { return c.Jobs }},
		{"pitcrew.detector.jobs.judged", "{attempt}", "Attempts whose ranks are compared", func(c job.Counts) int64 { return c.Judged }},
		{"pitcrew.detector.jobs.ranks", "{rank}", "Ranks that are known", func(c job.Counts) int64 { return c.Ranks }},
		{"pitcrew.detector.jobs.open", "{finding}", "Findings that have not ended", func(c job.Counts) int64 { return c.Open }},
		{"pitcrew.detector.jobs.standing", "{finding}", "Findings that are listed: said, or held back by a mute", func(c job.Counts) int64 { return c.Standing }},
		{"pitcrew.detector.classes", "{class}", "Classes of workloads that are known", func(c job.Counts) int64 { return c.Classes }},
		{"pitcrew.detector.classes.runs", "{run}", "Runs of them that are remembered", func(c job.Counts) int64 { return c.ClassRuns }},
		{"pitcrew.detector.classes.attempts", "{attempt}", "Attempts that are runs of a class now", func(c job.Counts) int64 { return c.Classed }},
		{"pitcrew.detector.classes.open", "{finding}", "Findings about classes that have not ended", func(c job.Counts) int64 { return c.Slower }},
	}
)

func newJobsMetrics(set component.TelemetrySettings, counts func() (job.Counts, int64)) (*jobsMetrics, error) {
	meter := set.MeterProvider.Meter("github.com/pitcrew/pitcrew/collector/detectorconnector")
	var all []metric.Observable
	var observe []func(metric.Observer, job.Counts)
	for _, row := range jobsCounters {
		c, err := meter.Int64ObservableCounter(row.name, metric.WithUnit(row.unit), metric.WithDescription(row.about))
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", row.name, err)
		}
		all = append(all, c)
		observe = append(observe, func(o metric.Observer, n job.Counts) { o.ObserveInt64(c, row.of(n)) })
	}
	for _, row := range jobsGauges {
		g, err := meter.Int64ObservableGauge(row.name, metric.WithUnit(row.unit), metric.WithDescription(row.about))
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", row.name, err)
		}
		all = append(all, g)
		observe = append(observe, func(o metric.Observer, n job.Counts) { o.ObserveInt64(g, row.of(n)) })
	}
	dropped, err := meter.Int64ObservableCounter("pitcrew.detector.jobs.dropped", metric.WithUnit("{finding}"),
		metric.WithDescription("Findings dropped because the pipeline refused them for too long"))
	if err != nil {
		return nil, fmt.Errorf("metric pitcrew.detector.jobs.dropped: %w", err)
	}
	reg, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		n, lost := counts()
		for _, f := range observe {
			f(o, n)
		}
		o.ObserveInt64(dropped, lost)
		return nil
	}, append(all, dropped)...)
	if err != nil {
		return nil, fmt.Errorf("detector's own metrics: %w", err)
	}
	return &jobsMetrics{reg}, nil
}

func (m *jobsMetrics) close() error { return m.reg.Unregister() }
