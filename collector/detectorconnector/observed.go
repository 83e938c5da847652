package detectorconnector

import (
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/semconv"
)

// process takes in a sight of a process that has a GPU open. Whether its pod was given the GPU, the kubelet's last answer says: a pod of
// which only the UID is known, and nobody names it, is not judged.
func process(ended bool) func(*core, *detector.Engine, both, plog.LogRecord) []finding.Finding {
	return func(c *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
		p := detector.Process{
			PID: int(a.number(semconv.ProcessPID, 0)), Start: a.number(semconv.ProcessStart, 0), Name: a.text(semconv.ProcessExecutableName),
			Command: a.text(semconv.ProcessCommandLine), GPU: a.text(semconv.HWID), PCI: a.text(semconv.HWPCI), PodUID: a.text(semconv.K8sPodUID),
			Namespace: a.text(semconv.K8sNamespaceName), Pod: a.text(semconv.K8sPodName), Container: a.text(semconv.K8sContainerName), Time: when(r), Ended: ended,
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
		Device: a.text(semconv.HWName), Number: a.number(semconv.FabricPort, 0), Layer: a.text(semconv.FabricLayer), State: a.text(semconv.FabricState),
		Before: a.text(semconv.FabricStateBefore), PCI: a.text(semconv.HWPCI), Time: when(r), Downs: a.number(semconv.Count, 0),
	})
}

// link takes in that an NVLink changed its state.
func link(_ *core, e *detector.Engine, a both, r plog.LogRecord) []finding.Finding {
	return e.LinkChanged(a.text(semconv.HWID), int(a.number(semconv.NVLinkLink, -1)), a.text(semconv.NVLinkTo), when(r))
}
