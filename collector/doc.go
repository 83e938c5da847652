// Package collector is Pitcrew's distribution of the OpenTelemetry Collector: a list of components, one configuration for each
// place where it runs (node agent, DCGM process, gateway), and the command that starts them.
//
// It promises that each configuration starts without a flag, listens only on loopback and unix sockets, and holds a fault back
// for no batch. Our own components are packages below it and under receivers/; the judging is package detector's.
package collector
