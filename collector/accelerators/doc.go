// Package accelerators is a processor that gives what the exporters of other makers' accelerators say the names that the dcgm receiver uses:
// Ascend's npu-exporter and AMD's device-metrics-exporter, as the stock Prometheus receiver of any OpenTelemetry Collector scrapes them. Dashboards,
// thresholds and the table of certain faults then hold for them as they do for NVIDIA's.
//
// It promises that a batch without such metrics passes untouched, the same and not a copy; that what it does not know passes under its own
// name; and that it makes nothing up: a value that an exporter does not have is absent. The one thing it remembers is the most accelerators
// that were counted since its start, as the number that there should be.
package accelerators
