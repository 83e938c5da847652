// Package ruletest evaluates alerting and recording rules over series that are held in memory, with Prometheus' own query engine and
// rules. Run reads test files as `promtool test rules` does.
//
// It promises that no test reads anything but its files, and that the same file always gives the same result. It serves no queries
// and stores nothing.
package ruletest
