// Package class remembers what a class of workloads looks like, so that a new run need not be learnt from nothing: jobs of one
// signature share a distribution of values and a profile of them, step by step.
//
// It gives a new series its prior, explains schedule changes (siblings showed them at the same step), and compares classes that
// differ in one key alone, which is how "slow on this driver" is seen.
//
// A store is a set of records, each written by one gateway about one run. Merging is a union in which the later version of a
// record wins: associative, commutative and idempotent, so gateways may exchange snapshots in any order and any number of times.
// It promises a hard bound on records, least recently observed dropped first; bounded names; NaN, infinities and values that are
// not positive change nothing; and the same observations give the same bytes. Values mean "high is slow". A Store is used by one
// goroutine at a time. It judges no single run: package series does, with the reference from here.
package class
