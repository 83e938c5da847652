// Package demo shows Pitcrew at work on the sandbox: it starts a cluster in a box and every part of Pitcrew as a process of its own,
// runs a real training job, breaks something, follows the incident, and checks from the outside that the job is healed.
//
// It promises that what it prints was measured in that run, that its exit code is 0 only if every rank stepped past the
// checkpoint, and that it leaves nothing behind. GPUs, nodes and the network between them are simulated, and the output says so.
package demo
