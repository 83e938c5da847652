// Package agentbench runs Pitcrew's two processes of a GPU node, the agent and the DCGM process, as the node does: from the built
// binary, on the stub libdcgm, a kernel log, a kubelet's pod-resources socket and training ranks. Its tests show what the two promise
// together, and its benchmark what they cost (make bench-agent). There is nothing in it but tests.
package agentbench
