// Package detectorconnector is the collector's skin over package detector: it turns metrics and log events of receivers into
// findings, each a log record whose EventName is the CloudEvent's type and whose body is the event's bytes.
//
// It promises that consuming is synchronous, without batch and without timer; that a finding which the next consumer refuses is
// kept and sent with the next; and that a GPU is named by UUID and, where the kubelet says so, by the pod that holds it. Both
// instances of one configuration (metrics to logs, logs to logs) share one engine.
package detectorconnector
