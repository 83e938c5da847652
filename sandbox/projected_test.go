package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

func TestAPodReadsItsConfigMapAndItsAccountsTokenWhereTheyAreMounted(t *testing.T) {
	s := sandboxtest.Cluster(t)
	maps := s.Client().CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "words"}, Data: map[string]string{"a.txt": "alpha", "b.txt": "beta"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	pod := shellPod("projected", "a1", "", 0)
	pod.Spec.Containers[0].Command = []string{"/bin/sh", "-c", `cat "$0"/b.txt "$1"/ns "$1"/token "$1"/ca.crt > "$2".tmp; mv "$2".tmp "$2"; sleep 100`, "/words", "/account", out}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "words", MountPath: "/words"}, {Name: "account", MountPath: "/account"}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "words", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "words"},
			Items: []corev1.KeyToPath{{Key: "b.txt", Path: "b.txt"}}}}},
		{Name: "account", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: "nobody"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "ns", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
		}}}},
	}
	create(t, s, pod)
	var got string
	eventually(t, "the pod's files", func() bool {
		raw, err := os.ReadFile(out)
		got = string(raw)
		return err == nil
	})
	if !strings.HasPrefix(got, "betadefault") || strings.Count(got, ".") < 2 || !strings.Contains(got, "BEGIN CERTIFICATE") || strings.Contains(got, "alpha") {
		t.Errorf("the pod read %q", got)
	}
}
