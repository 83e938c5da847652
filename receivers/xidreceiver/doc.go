// Package xidreceiver is the `xid` receiver: it follows the kernel log and
// emits Xid, SXid, lost-GPU and other hardware lines as log records, each within
// the call that reads its line.
//
// It promises: blocking reads, no polling; every record since boot is read, and
// one that was lost is counted and said; after a restart no event comes twice as
// news and none since boot is missed, where a storage extension is configured; a
// storm is counted, so that it is a handful of records; a log that cannot be read is one
// line of the collector's log and a recoverable status, and is read as soon as
// it can be.
//
// It judges nothing: a record has what its line says, and the detector looks it
// up. What is emitted is in metadata.yaml, how lines are read in package kernel.
package xidreceiver
