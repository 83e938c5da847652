package foreign

import (
	"slices"
	"strings"

	"github.com/pitcrew/pitcrew/event"
)

// meaning is what a condition of a node comes to where it is bad.
type meaning struct {
	name     string // of the signal k8s/<name>; empty: as the condition is called
	bad      []string
	severity event.Severity
}

// Status words of Kubernetes.
const (
	isTrue    = "True"
	isFalse   = "False"
	isUnknown = "Unknown"
)

// conditions says what is known of conditions by their type. What is not here is bad where its status is True, or False where its name ends
// as a good thing's does, and then critical: nobody writes a condition of his own on a node for less.
var conditions = map[string]meaning{
	// The kubelet and the node controller.
	"Ready":              {"NotReady", []string{isFalse, isUnknown}, event.Warning},
	"MemoryPressure":     {"", []string{isTrue}, event.Warning},
	"DiskPressure":       {"", []string{isTrue}, event.Warning},
	"PIDPressure":        {"", []string{isTrue}, event.Warning},
	"NetworkUnavailable": {"", []string{isTrue}, event.Critical},
	// node-problem-detector's own configurations.
	"KernelDeadlock":              {"", []string{isTrue}, event.Critical},
	"ReadonlyFilesystem":          {"", []string{isTrue}, event.Critical},
	"FrequentKubeletRestart":      {"", []string{isTrue}, event.Warning},
	"FrequentDockerRestart":       {"", []string{isTrue}, event.Warning},
	"FrequentContainerdRestart":   {"", []string{isTrue}, event.Warning},
	"FrequentUnregisterNetDevice": {"", []string{isTrue}, event.Warning},
	// Amazon EKS' node monitoring agent.
	"AcceleratedHardwareReady": {"", []string{isFalse}, event.Critical},
	"ContainerRuntimeReady":    {"", []string{isFalse}, event.Warning},
	"KernelReady":              {"", []string{isFalse}, event.Warning},
	"NetworkingReady":          {"", []string{isFalse}, event.Warning},
	"StorageReady":             {"", []string{isFalse}, event.Warning},
	// Our own word is no witness.
	"PitcrewHealthy": {},
	// OpenShift's and the cloud providers' bookkeeping.
	"EtcdIsVoter": {},
}

// goodEndings are how the names of conditions end that are well while they are True.
var goodEndings = []string{"Ready", "Healthy", "Available", "Online"}

func meaningOf(kind string) meaning {
	m, known := conditions[kind]
	if !known {
		m = meaning{bad: []string{isTrue}, severity: event.Critical}
		if slices.ContainsFunc(goodEndings, func(s string) bool { return strings.HasSuffix(kind, s) }) {
			m.bad = []string{isFalse}
		}
	}
	if m.name == "" {
		m.name = kind[strings.LastIndexByte(kind, '/')+1:] // example.com/GPUBroken
	}
	return m
}

// What NVSentinel writes on a node that it has taken out of service.
const (
	sentinelState     = "dgxc.nvidia.com/nvsentinel-state"   // label: quarantined, draining, …, remediation-succeeded
	sentinelCordoned  = "k8saas.nvidia.com/cordon-timestamp" // label
	sentinelEvent     = "quarantineHealthEvent"              // annotation: its health event, as JSON
	sentinelName      = "nvsentinel-quarantined"             // k8s/…
	sentinelSucceeded = "remediation-succeeded"              // the state in which the node is well again
)

// taints are those that say that a GPU of the node is faulty, by key, with the signal's name.
var taints = map[string]string{
	"nvidia.com/gpu-error": "gpu-error", // as NVSentinel's examples have it
}

// warnings says how severe an Event of a reason is; others are information: anybody may say anything in an Event. An empty one is none of ours.
var warnings = map[string]event.Severity{
	// What conditions say as well, and better.
	"NodeNotReady": "", "NodeHasSufficientMemory": "", "NodeHasNoDiskPressure": "", "NodeHasSufficientPID": "",
	// What says nothing of the hardware.
	"InvalidDiskCapacity": "", "ImageGCFailed": "", "FreeDiskSpaceFailed": "", "EvictionThresholdMet": "", "CheckLimitsForResolvConf": "",
	// node-problem-detector on the kernel log.
	"KernelOops": event.Warning, "TaskHung": event.Warning, "IOError": event.Warning, "Ext4Error": event.Warning, "CperHardwareErrorFatal": event.Critical,
}

func severityOf(reason string) event.Severity {
	if s, known := warnings[reason]; known {
		return s
	}
	return event.Info
}
