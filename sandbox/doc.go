// Package sandbox is a GPU cluster in a box: a real Kubernetes control plane, and nodes whose kubelet runs pods as local processes.
//
// It promises: etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real ones; a pod bound to a node becomes real
// processes with the kubelet's rules for restarts, back-off, grace periods, terminal phases and deletion; each node has a kernel log in
// /dev/kmsg's format, a pod-resources socket, GPU assignment and a DCGM script; faults behave as the hardware does; and nothing
// outlives it: not after Stop, Ctrl-C, or a SIGKILL of the process that called Up.
//
// It does not isolate: containers share the host's file system, network and users. A volume's mount path is therefore realised by
// rewriting every environment value, command, argument and working directory that begins with it (also after an argument's "=").
// Images, probes, lifecycle hooks, resource limits, security contexts and Services are ignored.
//
//	s, err := sandbox.Up(ctx, sandbox.Options{})
//	defer s.Stop()
//	job := s.Job(sandbox.Workload{Name: "train", Launcher: "pitcrew"})
//	s.Client().BatchV1().Jobs("default").Create(ctx, job, metav1.CreateOptions{})
//	s.StartProcess("a1", "agent", []string{"bin/pitcrew-collector", "--config", cfg}, nil)
//	s.Fault(ctx, sandbox.Fault{Kind: sandbox.XID79, Node: "a1"})
//	s.Repair(ctx, "a1")
package sandbox
