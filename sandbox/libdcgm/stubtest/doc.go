// Package stubtest proves the stub libdcgm.so.4 with a program that is not ours to tune: every call here is one of unmodified
// go-dcgm, and what is expected of it is what DCGM's headers and go-dcgm's documentation say.
package stubtest
