// Package fabricreceiver reads the ports of InfiniBand and RoCE adapters from sysfs: state every second, counters every fifteen.
//
// It promises that each adapter is read by a goroutine of its own, so that one whose firmware hangs or answers with errors hides no other; that
// an adapter whose counters cannot be read is asked less and less often, since each question may cost a line in the kernel log; and that a port
// which leaves ACTIVE, or did so between two looks, is a log event. It judges nothing: what a port's state means is the detector's question.
package fabricreceiver
