package cluster_test

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/sandbox"
)

const disks = "topology.example.com/disks"

// bound makes a claim that is bound to a volume. Only nodes with the label disks=cabinet can mount it; empty: all can.
func bound(t *testing.T, s *sandbox.Sandbox, claim, cabinet string) {
	t.Helper()
	class, size := "", corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + claim}, Spec: corev1.PersistentVolumeSpec{Capacity: size, AccessModes: modes,
		ClaimRef:               &corev1.ObjectReference{Namespace: "default", Name: claim},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disks.example.com", VolumeHandle: claim}}}}
	if cabinet != "" {
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: disks, Operator: corev1.NodeSelectorOpIn, Values: []string{cabinet}}}}}}}
	}
	api := s.Client().CoreV1()
	if _, err := api.PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.PersistentVolumes().Delete(t.Context(), pv.Name, metav1.DeleteOptions{}) })
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claim, Namespace: "default"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, StorageClassName: &class, VolumeName: pv.Name, Resources: corev1.VolumeResourceRequirements{Requests: size}}}
	if _, err := api.PersistentVolumeClaims("default").Create(t.Context(), pvc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = api.PersistentVolumeClaims("default").Delete(t.Context(), claim, metav1.DeleteOptions{})
	})
}

func mounts(claims ...string) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		for _, c := range claims {
			j.Spec.Template.Spec.Volumes = append(j.Spec.Template.Spec.Volumes, corev1.Volume{Name: "v-" + c, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}}})
		}
	}
}

// TestAReplacementGoesWhereItsVolumesCanBeMounted covers a job whose node is lost while its checkpoints are on disks of one cabinet.
func TestAReplacementGoesWhereItsVolumesCanBeMounted(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	bound(t, s, "anywhere", "")
	bound(t, s, "cabinet-a", "a")
	for name, tc := range map[string]struct {
		claims  []string
		allowed []string // values of the label disks
		why     string   // against the others
	}{
		"a volume without node affinity": {[]string{"anywhere"}, []string{"a", "b", ""}, ""},
		"a volume of one cabinet":        {[]string{"cabinet-a"}, []string{"a"}, "volume pv-cabinet-a of claim default/cabinet-a cannot be mounted there"},
		"both":                           {[]string{"anywhere", "cabinet-a"}, []string{"a"}, "volume pv-cabinet-a of claim default/cabinet-a cannot be mounted there"},
		"a claim that does not exist":    {[]string{"missing"}, nil, "cannot read the volume of claim default/missing: "},
	} {
		t.Run(name, func(t *testing.T) {
			ref := submit(t, s, 1, mounts(tc.claims...))
			var g cluster.Gang
			eventually(t, "the job's pod is seen", func() bool {
				var err error
				g, err = c.Gang(within(t), ref)
				return err == nil && len(g.Members) == 1
			})
			r := g.PlacementRequest(g.Members[0])
			if r.HardLabels != nil {
				t.Errorf("the class of nodes is narrowed: %v", r.HardLabels)
			}
			var nodes []*placement.Node
			for _, name := range []string{"a", "b", ""} {
				labels := map[string]string{}
				if name != "" {
					labels[disks] = name
				}
				nodes = append(nodes, &placement.Node{Name: "node-" + name, Ready: true, Labels: labels, Free: map[string]int64{gpu: 8, "pods": 10}})
			}
			r.Faulty, r.Exclude = "node-lost", nil
			nodes = append(nodes, &placement.Node{Name: "node-lost", Labels: map[string]string{disks: "a"}})
			got := map[string]placement.Candidate{}
			for _, k := range placement.Choose(r, valuesOf(nodes)).Candidates {
				got[k.Node] = k
			}
			for _, name := range []string{"a", "b", ""} {
				k, allowed := got["node-"+name], false
				for _, a := range tc.allowed {
					allowed = allowed || a == name
				}
				if refused := k.Reason == placement.VolumeAway; refused == allowed {
					t.Errorf("disks %q: %+v, want it allowed: %v", name, k, allowed)
				}
				if !allowed && !strings.HasPrefix(k.Detail, tc.why) {
					t.Errorf("disks %q: %q, want %q", name, k.Detail, tc.why)
				}
			}
		})
	}
}

func valuesOf(nodes []*placement.Node) (out []placement.Node) {
	for _, n := range nodes {
		out = append(out, *n)
	}
	return out
}
