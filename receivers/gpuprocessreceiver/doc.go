// Package gpuprocessreceiver says which process has which GPU open: one log event for each process and GPU when it is seen, again now and
// then while it lasts, and one when it has ended. It finds out from /proc alone, so it sees what went round the device plugin as well.
//
// It judges nothing: whether the process's pod was given the GPU is the detector's question. It promises to look at a bounded number of
// processes at a time (new ones soon, old ones every minute), to look at none where there is no NVIDIA driver, and to count those that it may
// not look into.
package gpuprocessreceiver
