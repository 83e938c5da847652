package sandbox_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

func TestPodResourcesNameTheGPUsThatAContainerSees(t *testing.T) {
	s := sandboxtest.Cluster(t)
	create(t, s, shellPod("gpus", "b1", `echo "$NVIDIA_VISIBLE_DEVICES"; cat $(echo "$PITCREW_SIM_GPU" | tr , ' '); echo; sleep 1000`, 2))
	pod := until(t, s, "gpus", "running", running)
	n, _ := s.Node("b1")
	conn, err := grpc.NewClient("unix://"+n.PodResources(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var resp *podresources.ListPodResourcesResponse
	eventually(t, "the pod gpus alone is listed", func() bool { // a pod of an earlier test may still be ending
		resp, err = podresources.NewPodResourcesListerClient(conn).List(t.Context(), &podresources.ListPodResourcesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return len(resp.PodResources) == 1 && resp.PodResources[0].Name == "gpus" && resp.PodResources[0].Namespace == "default"
	})
	dev := resp.PodResources[0].Containers[0].Devices[0]
	want := []string{n.GPUs[0].UUID, n.GPUs[1].UUID}
	if dev.ResourceName != "nvidia.com/gpu" || strings.Join(dev.DeviceIds, ",") != strings.Join(want, ",") {
		t.Errorf("got %v, want %v", dev, want)
	}
	eventually(t, "the container prints its GPUs", func() bool { return podLog(t, s, pod) == strings.Join(want, ",")+"\noo\n" })
}

func TestTheKernelLogNamesTheGPUsAndThenTheFault(t *testing.T) {
	s := sandboxtest.Cluster(t)
	n, _ := s.Node("b2")
	if _, err := s.Fault(t.Context(), sandbox.Fault{Kind: sandbox.XID79, Node: "b2", GPU: 3}); err != nil {
		t.Fatal(err)
	}
	defer s.Repair(t.Context(), "b2")
	log, err := os.ReadFile(n.Kmsg())
	if err != nil {
		t.Fatal(err)
	}
	g := n.GPUs[3]
	for i, line := range strings.Split(strings.TrimSpace(string(log)), "\n") {
		if !regexp.MustCompile(fmt.Sprintf(`^[46],%d,\d+,-;.+`, i)).MatchString(line) {
			t.Errorf("record %d is not in /dev/kmsg's form: %q", i, line)
		}
	}
	for _, want := range []string{";NVRM: GPU at PCI:" + g.PCI + ": " + g.UUID + "\n", ";NVRM: Xid (PCI:" + g.PCI + "): 79, "} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the kernel log lacks %q:\n%s", want, log)
		}
	}
	if b, _ := os.ReadFile(g.File); string(b) != string(sandbox.GPUBlocks) {
		t.Errorf("the lost GPU's file says %q, want %q", b, sandbox.GPUBlocks)
	}
	if err := s.Repair(t.Context(), "b2"); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(g.File); string(b) != string(sandbox.GPUOk) {
		t.Errorf("the repaired GPU's file says %q, want %q", b, sandbox.GPUOk)
	}
}

func TestALostNodeFallsSilentAndItsPodsStayTerminatingUntilItIsBack(t *testing.T) {
	s := sandboxtest.Cluster(t)
	n, _ := s.Node("b3")
	if err := s.StartProcess("b3", "agent", []string{"sleep", "1000"}, nil); err != nil {
		t.Fatal(err)
	}
	defer s.StopProcess("b3", "agent")
	create(t, s, shellPod("lost", "b3", "trap '' TERM; sleep 1000 & wait; sleep 1000", 8))
	pod := until(t, s, "lost", "running", running)
	node, err := s.Client().CoreV1().Nodes().Get(t.Context(), "b3", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	healthz := fmt.Sprintf("https://%s:%d/healthz", n.IP, node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if resp, err := client.Get(healthz); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the kubelet does not answer before the fault: %v", err)
	}
	boot := n.BootID()

	if _, err := s.Fault(t.Context(), sandbox.Fault{Kind: sandbox.NodeLost, Node: "b3"}); err != nil {
		t.Fatal(err)
	}
	if pids := sandbox.Marked(s, string(pod.UID)); len(pids) > 0 {
		t.Errorf("processes %v run on a node without power", pids)
	}
	for _, p := range s.Processes() {
		if p.Node == "b3" && p.Running {
			t.Errorf("%s runs on a node without power", p.Name)
		}
	}
	if _, err := client.Get(healthz); err == nil {
		t.Error("the kubelet of a node without power answers")
	}
	if err := s.Client().CoreV1().Pods("default").Delete(t.Context(), "lost", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // longer than the grace period: nobody is there to finish the deletion
	pod, err = s.Client().CoreV1().Pods("default").Get(t.Context(), "lost", metav1.GetOptions{})
	if err != nil || pod.DeletionTimestamp == nil || pod.Status.Phase != corev1.PodRunning {
		t.Fatalf("want the pod to stay Terminating and Running by its last word, got %s, %v", describe(pod), err)
	}

	if err := s.Repair(t.Context(), "b3"); err != nil {
		t.Fatal(err)
	}
	pod = until(t, s, "lost", "gone", gone)
	if pod.Status.Phase != corev1.PodFailed {
		t.Errorf("want the kubelet to report the lost pod Failed first, got %s", describe(pod))
	}
	if n.BootID() == boot {
		t.Error("the node came back with the boot id that it had")
	}
	for _, p := range s.Processes() {
		if p.Node == "b3" && !p.Running {
			t.Errorf("%s did not come back with the node", p.Name)
		}
	}
}
