// Package promrulesconnector runs Prometheus rule files over the metrics that pass, and gives what fires as findings, in the form
// of the detector connector's records. It is a skin over detector/promrules: names and labels become what the Prometheus exporter
// makes of them, so that one rule file serves here and in a Prometheus.
package promrulesconnector
