// Package kernel reads what the NVIDIA driver and its neighbours write into the
// kernel log: Xid and SXid lines in every form they come in, a GPU that fell
// off the bus without an Xid, adapters that do not start, GSP firmware, PCIe
// AER and mlx5 lines, and the line that says which GPU sits at which address.
//
// It promises that no input makes it fail: a line is an event, a detail that
// belongs to one, a fact learnt, or nothing. Parsing allocates nothing; the
// byte slices in an Event point into the line and live as long as it does. A
// kernel record must begin with the driver's tag, so that a name chosen by a
// user (the file in a segfault line) cannot pass for an Xid; lines of a log
// file may carry any of the prefixes that log daemons put before it.
//
// A Folder counts lines that say the same, so that a storm of lines is a handful
// of reports. What a line says is never held back the first time.
//
// It judges nothing: the detector does. It reads no files and knows nothing of
// OpenTelemetry. Parser and Folder are for one goroutine each.
package kernel
