// Package torchreceiver turns the rings and sockets of PyTorch ranks (package hook) into OpenTelemetry metrics and log events.
//
// It promises that the end of a rank is told the moment its process ends, not at the next sample; that a hung or dead rank is
// still read; that what a rank does not know gives no point, never a zero; and that no pod can make more series than its
// ranks' processes. Step numbers are values, never attributes. Names, units and attributes are those of metadata.yaml.
//
// It judges nothing: whether a step is late or a loss is wrong is the detector's to say.
package torchreceiver
