// Package natsexporter is the collector's skin over package bus: it publishes the detector's findings as events and keeps the
// node's conditions.
//
// It promises that a finding accepted with a spool folder survives a restart of the process and of NATS; that consuming never
// waits for NATS; that conditions, which are set aside from events, never delay them; and that it starts without NATS and says
// so. There is no queue and no batch: the bus's publisher is the queue.
package natsexporter
