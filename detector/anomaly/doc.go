// Package anomaly turns the values of one node into statistical findings: which signals are judged and how (the catalogue), which
// series they are (labels to dense ids), in which phase of training they were taken, and what several findings of one GPU and its
// rank come to together.
//
// It promises: a finding of one signal alone is information and nothing more; a warning needs witnesses of different families
// within a window, or one that is certain (docs/detection-formulas.md has the arithmetic); set-up is never judged; a finding that is open
// when the process ends is not said again by the next; what people said (acknowledge, mute, accept) holds at once; memory is
// bounded whatever the labels; and an Engine never reads a clock: the time is given with each batch.
//
// It does not compare ranks with each other, which is the work of package job on a gateway, and it knows nothing of OpenTelemetry,
// NATS or files. An Engine is used by one goroutine at a time.
package anomaly
