package detectorconnector

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/metric"

	"github.com/pitcrew/pitcrew/detector/job"
	"github.com/pitcrew/pitcrew/semconv"
)

// jobsMetrics are the engine's counts as the gateway's own metrics (metadata.yaml).
type jobsMetrics struct{ reg metric.Registration }

// jobsCounters and jobsGauges are the rows of metadata.yaml that belong to scope jobs.
var (
	jobsCounters = []struct {
		name, unit, about string
		of                func(job.Counts) int64
	}{
		{semconv.DetectorJobsSamples, "{sample}", "Steps of ranks, or parts of them, that were taken in", func(c job.Counts) int64 { return c.Samples }},
		{semconv.DetectorJobsRounds, "{round}", "Steps of a role that were closed", func(c job.Counts) int64 { return c.Rounds }},
		{semconv.DetectorJobsRoundsPartial, "{round}", "Rounds without a rank that was waited for", func(c job.Counts) int64 { return c.Partial }},
		{semconv.DetectorJobsFindings, "{finding}", "Findings about ranks and jobs, ends included", func(c job.Counts) int64 { return c.Findings }},
		{semconv.DetectorJobsBrief, "{finding}", "Findings that were over before they were said", func(c job.Counts) int64 { return c.Brief }},
		{semconv.DetectorJobsMalformed, "{sample}", "Samples that name no rank or step", func(c job.Counts) int64 { return c.Malformed }},
		{semconv.DetectorJobsLate, "{sample}", "Samples of a round that was closed", func(c job.Counts) int64 { return c.Late }},
		{semconv.DetectorJobsUnjoined, "{sample}", "Values whose step is not known", func(c job.Counts) int64 { return c.Unjoined }},
		{semconv.DetectorJobsContested, "{sample}", "Samples of a rank that another pod claims to be, or of a world of another size", func(c job.Counts) int64 { return c.Contested }},
		{semconv.DetectorJobsEvicted, "{attempt}", "Attempts dropped at a bound", func(c job.Counts) int64 { return c.Evicted }},
		{semconv.DetectorJobsRefused, "{sample}", "Samples of ranks beyond the bound", func(c job.Counts) int64 { return c.Refused }},
		{semconv.DetectorJobsMuted, "{finding}", "Findings held back by a mute", func(c job.Counts) int64 { return c.Muted }},
		{semconv.DetectorJobsAccepted, "{finding}", "Findings whose level people accepted", func(c job.Counts) int64 { return c.Accepted }},
		{semconv.DetectorJobsUnacceptable, "{finding}", "Findings without a level that people tried to accept", func(c job.Counts) int64 { return c.Unacceptable }},
		{semconv.DetectorClassesSteps, "{step}", "Steps of jobs that classes were taught", func(c job.Counts) int64 { return c.ClassSteps }},
		{semconv.DetectorClassesComparisons, "{comparison}", "Comparisons of a class with one of another driver or framework", func(c job.Counts) int64 { return c.Comparisons }},
		{semconv.DetectorClassesEvicted, "{run}", "Runs of classes dropped at a bound", func(c job.Counts) int64 { return c.ClassEvicted }},
		{semconv.DetectorClassesUnclear, "{job}", "Times that a job's ranks told of no workload that can be read, or of several", func(c job.Counts) int64 { return c.Unclear }},
	}
	jobsGauges = []struct {
		name, unit, about string
		of                func(job.Counts) int64
	}{
		{semconv.DetectorJobsAttempts, "{attempt}", "Attempts of jobs that are known", func(c job.Counts) int64 { return c.Jobs }},
		{semconv.DetectorJobsJudged, "{attempt}", "Attempts whose ranks are compared", func(c job.Counts) int64 { return c.Judged }},
		{semconv.DetectorJobsRanks, "{rank}", "Ranks that are known", func(c job.Counts) int64 { return c.Ranks }},
		{semconv.DetectorJobsOpen, "{finding}", "Findings that have not ended", func(c job.Counts) int64 { return c.Open }},
		{semconv.DetectorJobsStanding, "{finding}", "Findings that are listed: said, or held back by a mute", func(c job.Counts) int64 { return c.Standing }},
		{semconv.DetectorClasses, "{class}", "Classes of workloads that are known", func(c job.Counts) int64 { return c.Classes }},
		{semconv.DetectorClassesRuns, "{run}", "Runs of them that are remembered", func(c job.Counts) int64 { return c.ClassRuns }},
		{semconv.DetectorClassesAttempts, "{attempt}", "Attempts that are runs of a class now", func(c job.Counts) int64 { return c.Classed }},
		{semconv.DetectorClassesOpen, "{finding}", "Findings about classes that have not ended", func(c job.Counts) int64 { return c.Slower }},
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
	dropped, err := meter.Int64ObservableCounter(semconv.DetectorJobsDropped, metric.WithUnit("{finding}"),
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
