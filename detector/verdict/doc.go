// Package verdict judges what the kernel log and DCGM report about GPUs and switches. It is the only place that looks codes up in the tables
// of package rules, and the only place that knows what a burst is.
//
// It promises three things:
//   - A line always gets a verdict. A code that the tables do not have is a warning.
//   - The first cause of a burst is never an echo, and neither is a line that is worse than what came before it.
//   - Memory is bounded. A burst that is full still takes what is worse, and what clears.
//
// It has no clock and reads no files. A Bursts is for one goroutine.
package verdict
