package detectorconnector

import (
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/detector/finding"
)

// process takes in a sight of a process that has a GPU open. Whether its pod was given the GPU, the kubelet's last answer says: a pod of
// which only the UID is known, and nobody names it, is not judged.
func process(ended bool) func(*core, *detector.Engine, both, plog.LogRecord) []finding.Finding {
	return func(c *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
		p := detector.Process{
			PID: int(a.number("process.pid", 0)), Start: a.number("pitcrew.process.start", 0), Name: a.text("process.executable.name"),
			Command: a.text("process.command_line"), GPU: a.text("hw.id"), PCI: a.text("hw.pci"), PodUID: a.text("k8s.pod.uid"),
			Namespace: a.text("k8s.namespace.name"), Pod: a.text("k8s.pod.name"), Container: a.text("k8s.container.name"), Time: when(r), Ended: ended,
		}
		if p.PodUID != "" && p.Pod == "" {
			p.Namespace, p.Pod, _ = c.pods.PodOfUID(p.PodUID)
		}
		c.pods.Touch() // on a node whose GPUs nobody samples, this keeps the answer young
		if p.PodUID == "" || p.Pod != "" {
			p.Given, p.Judged = c.pods.Given(p.GPU, p.Namespace, p.Pod)
		}
		return e.Process(p)
	}
}

// port takes in a change of a port of the fabric.
func port(_ *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
	return e.Port(detector.Port{
		Device: a.text("hw.name"), Number: a.number("pitcrew.fabric.port", 0), Layer: a.text("pitcrew.fabric.layer"), State: a.text("pitcrew.fabric.state"),
		Before: a.text("pitcrew.fabric.state.before"), PCI: a.text("hw.pci"), Time: when(r), Downs: a.number("pitcrew.count", 0),
	})
}

// link takes in that an NVLink changed its state.
func link(_ *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
	return e.LinkChanged(a.text("hw.id"), int(a.number("pitcrew.nvlink.link", -1)), a.text("pitcrew.nvlink.to"), when(r))
}
