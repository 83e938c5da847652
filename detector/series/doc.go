// Package series judges single series by what they were: spikes, shifts, drifts, stalls, flat lines and absence, with thresholds
// that come from an asked rate of false onsets and from the series itself, none set by hand.
//
// It promises: one pass (what was said of a sample never changes); the clock is the samples' own; the same samples give the same
// bytes on one architecture; a bounded core state per series (see StateSize), O(1) work and no allocation for a sample that opens
// or ends nothing; a series that is still being learnt is unknown and never normal; NaN and infinities move nothing, and one
// sample moves a learnt baseline by at most three scales times its learning rate.
//
// It does not compare series with each other (package peers does) and knows nothing of OpenTelemetry, labels or files. The
// method, its formulas and its measured weaknesses are in docs/detection-formulas.md.
package series
