// Package storm measures the remediator when hundreds of nodes fail at once, on a cluster of thousands of nodes.
//
// Real: etcd, kube-apiserver, scheduler and controllers, NATS with JetStream, and the remediator's own processes with leader election,
// under the ServiceAccount of deploy/rbac.yaml. Emulated: nodes and pods (kwok), and what each node's agent publishes and answers on the
// bus (this package). The package does not judge how a job is healed; sandbox/e2e and `make bench-recovery` do, with real ranks.
package storm
