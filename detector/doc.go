// Package detector is the engine that judges what receivers saw on one node: the only place where "this is abnormal" is said.
//
// It promises that the same input gives the same findings and the same ids; that the clock is the samples' own and nothing
// runs between calls; that memory is bounded, whatever the input; that an onset gives one finding and its end one recovery;
// and that data which is absent is never read as a zero or as health. An Engine is used by one goroutine at a time.
//
// It knows nothing of OpenTelemetry, NATS or Kubernetes, reads no file and resolves no pod: its skins do. This file set holds
// the certain faults; each has a file of its own (kernel lines, GPU values, ranks) beside the machinery they share.
package detector
