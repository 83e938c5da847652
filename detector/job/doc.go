// Package job compares the ranks of a training job with each other, wherever they run: a gateway gives it the steps of all of them.
//
// It promises: steps are lined up by their number, so clocks of nodes need not agree; ranks are compared only within one attempt
// and one parallel role, and only on what a slow rank does not share with those who wait for it; a rank that two pods claim to be is
// judged by nobody; nothing is said of the first rounds of an attempt; a rank that falls silent while its peers go on is absent; a
// job of which nothing is heard is forgotten and what was open about it ends. Jobs, ranks and rounds are bounded, and what a bound
// costs is counted. The package never reads a clock: who calls gives the time. An Engine is used by one goroutine at a time.
//
// With a store of classes it also compares a job with earlier runs of its workload, step by step, and workloads by driver and
// framework. What a job shows while something is wrong with it is not taught; a job that does not say what it runs takes no part.
//
// Who is slow is decided by package peers, and a job against its class by package series. What it costs and what is said of it is decided here.
package job
