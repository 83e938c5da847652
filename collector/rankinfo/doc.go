// Package rankinfo is the processor on an agent's way to a gateway. It lets through what the node's ranks say of themselves, and
// adds to their pitcrew.train.info what their GPU is (hw.model, hw.driver_version), which pitcrew.gpu.info of the same node tells:
// the gateway knows a job's workload then without a look at any node, and all of it is routed with the job.
//
// It promises bounded memory, and that what is not known is not guessed: a rank whose GPU nobody describes gets a model only where
// all described GPUs of the node are the same. Nothing else of a node passes.
package rankinfo
