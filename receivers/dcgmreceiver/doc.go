// Package dcgmreceiver reads NVIDIA GPUs through DCGM as OpenTelemetry metrics, and DCGM's policy violations as log events.
//
// It promises that a blank is never a zero: what DCGM does not know gives no point; that a GPU which vanished is said at once, by
// its UUID, while it is expected; that a call which hangs delays nothing but itself, shows as pitcrew.dcgm.stale and as component
// status, and is recovered from without a restart; and that every name, unit and interval comes from one table (Fields).
//
// It judges nothing: thresholds belong to the detector. It is meant for a collector process of its own, since libdcgm is C code that
// can hang or end the process it lives in. Without cgo everything here builds and runs but the connection itself, and says so.
package dcgmreceiver
