// Package promrules runs standard Prometheus rule files over a short window of samples in memory, and makes findings of the alerts
// that fire. The files are those of Prometheus (`promtool check rules` passes or refuses the same ones): groups with interval,
// limit, labels and query_offset; recording rules; alerts with for, keep_firing_for, labels and templated annotations.
//
// It promises a bound: on series, on samples a series, and on the samples and time of one query. A rule that looks farther back than
// the window reaches is refused when it is loaded, not found empty when it is needed. Nothing is stored: after a restart `for` starts
// anew, but an alert that was firing stays one finding (Snapshot, Restore).
//
// It does not know where samples come from: a caller appends them with the labels that Prometheus would have given them.
package promrules
