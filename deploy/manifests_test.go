package deploy_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

// podOf is the pod that an object makes; nil where it makes none.
func podOf(t testing.TB, o *unstructured.Unstructured) *corev1.PodTemplateSpec {
	t.Helper()
	template, ok, _ := unstructured.NestedMap(o.Object, "spec", "template")
	if !ok {
		return nil
	}
	pod := &corev1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(template, pod, true); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return pod
}

// settings finds the names of environment variables in source files.
func settings(t testing.TB, globs ...string) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for _, g := range globs {
		files, err := filepath.Glob(g)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", g, err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			for _, m := range regexp.MustCompile(`(?:env:|")(PITCREW_[A-Z_]+)`).FindAllSubmatch(raw, -1) {
				known[string(m[1])] = true
			}
		}
	}
	return known
}

func TestProgramsKnowEverySettingThatTheChartGivesThem(t *testing.T) {
	collector := func(mode string) []string {
		return []string{"../collector/config/" + mode + ".yaml", "../collector/config/overlay/*.yaml", "../collector/prepare.go", "../collector/command.go", "../collector/routes.go"}
	}
	known := map[string]map[string]bool{
		"agent": settings(t, collector("agent")...), "dcgm": settings(t, collector("dcgm")...), "gateway": settings(t, collector("gateway")...),
		"router": settings(t, collector("router")...), "remediator": settings(t, "../cmd/pitcrew-remediator/*.go"), "bus": {},
	}
	known["uninstall"] = known["remediator"]
	seen := map[string]bool{}
	for name, values := range valueSets {
		for _, o := range objects(t, values) {
			pod := podOf(t, o)
			if pod == nil {
				continue
			}
			for _, c := range pod.Spec.Containers {
				for _, e := range c.Env {
					if strings.HasPrefix(e.Name, "PITCREW_") && !known[c.Name][e.Name] {
						t.Errorf("%s: container %s does not know %s", name, c.Name, e.Name)
					}
					seen[e.Name] = true
				}
			}
		}
	}
	if len(seen) < 25 {
		t.Errorf("only %d settings were looked at", len(seen))
	}
}

// The order of variables decides: $(NAME) is replaced only by what stands before.
func TestFieldsOfThePodStandBeforeTheSettingsThatNameThem(t *testing.T) {
	for _, o := range objects(t, nil) {
		pod := podOf(t, o)
		if pod == nil {
			continue
		}
		for _, c := range pod.Spec.Containers {
			before := map[string]bool{}
			for _, e := range c.Env {
				for _, m := range regexp.MustCompile(`\$\(([A-Z_]+)\)`).FindAllStringSubmatch(e.Value, -1) {
					if !before[m[1]] {
						t.Errorf("%s: %s=%s, and %s is not known by then", c.Name, e.Name, e.Value, m[1])
					}
				}
				if before[e.Name] {
					t.Errorf("%s: %s is there twice", c.Name, e.Name)
				}
				before[e.Name] = true
			}
		}
	}
}

func TestProgramsTakeTheFlagsThatTheChartGivesThem(t *testing.T) {
	bin := binaries(t)
	tried := map[string]bool{}
	for name, values := range valueSets {
		for _, o := range objects(t, values) {
			pod := podOf(t, o)
			if pod == nil {
				continue
			}
			for _, c := range pod.Spec.Containers {
				line := append(slices.Clone(c.Command), c.Args...)
				line[0] = strings.Replace(line[0], "pitcrew-gateway", "pitcrew-collector", 1) // the same program, another build
				if key := strings.Join(line, " "); tried[key] {
					continue
				} else {
					tried[key] = true
				}
				cmd := exec.Command(filepath.Join(bin, line[0]), append(line[1:], "--help")...)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v: %v: %s", name, line, err, out)
				}
				if len(c.Command) > 1 && !strings.Contains(string(out), " "+line[1]) {
					t.Errorf("%s: %v: its help is not that of %s: %s", name, line, line[1], out)
				}
			}
		}
	}
	if len(tried) < 8 {
		t.Errorf("only %d command lines were tried", len(tried))
	}
}

// binaries is where make build puts the programs.
func binaries(t testing.TB) string {
	t.Helper()
	bin := os.Getenv("PITCREW_BIN")
	if bin == "" {
		bin = "../bin"
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"pitcrew", "pitcrew-collector", "pitcrew-remediator", "libdcgm.so.4"} {
		if _, err := os.Stat(filepath.Join(bin, p)); err != nil {
			t.Fatalf("%v; make build, or set PITCREW_BIN", err)
		}
	}
	return bin
}

func TestTheAPIServerTakesEveryManifestWordForWord(t *testing.T) {
	s := sandboxtest.Cluster(t)
	if err := s.CreateNamespace(t.Context(), "word-for-word", nil); err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(s.Client().Discovery())
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	kinds := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(valueSets)) {
		for _, o := range objects(t, valueSets[name], "-n", "word-for-word") {
			m, err := mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			var client dynamic.ResourceInterface = dyn.Resource(m.Resource)
			if m.Scope.Name() == meta.RESTScopeNameNamespace {
				if o.GetNamespace() == "" {
					t.Errorf("%s: %s %s names no namespace", name, o.GetKind(), o.GetName())
				}
				client = dyn.Resource(m.Resource).Namespace(o.GetNamespace())
			}
			_, err = client.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				t.Errorf("%s: %s %s: %v", name, o.GetKind(), o.GetName(), err)
			}
			kinds[o.GetKind()] = true
		}
	}
	if len(kinds) < 15 {
		t.Errorf("only %d kinds were tried: %v", len(kinds), slices.Sorted(maps.Keys(kinds)))
	}
}

// Which Pod Security level each pod keeps is asked of the API server's own admission.
func TestOnlyTheNodesPodNeedsThePrivilegedLevel(t *testing.T) {
	s := sandboxtest.Cluster(t)
	for _, level := range []string{"restricted", "baseline", "privileged"} {
		if err := s.CreateNamespace(t.Context(), level, map[string]string{"pod-security.kubernetes.io/enforce": level}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"as it stands", "several gateways, with rules", "agents alone, unprivileged"} {
		for _, o := range objects(t, valueSets[name]) {
			template := podOf(t, o)
			if template == nil {
				continue
			}
			strictest := ""
			var why error
			for _, level := range []string{"restricted", "baseline", "privileged"} {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: level, Labels: template.Labels}, Spec: *template.Spec.DeepCopy()}
				pod.Spec.ServiceAccountName, pod.Spec.RuntimeClassName = "", nil
				claims, _, _ := unstructured.NestedSlice(o.Object, "spec", "volumeClaimTemplates")
				for _, c := range claims {
					name, _, _ := unstructured.NestedString(c.(map[string]any), "metadata", "name")
					pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
				}
				_, err := s.Client().CoreV1().Pods(level).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if err == nil {
					strictest = level
					break
				}
				why = err
			}
			want := "restricted"
			if o.GetKind() == "DaemonSet" {
				want = "privileged"
			}
			if strictest != want {
				t.Errorf("%s: %s %s keeps %q, want %q: %v", name, o.GetKind(), o.GetName(), strictest, want, why)
			}
		}
	}
}

func TestTheProcessOfDCGMHasNoRightOnItsNode(t *testing.T) {
	for _, values := range []map[string]any{nil, {"agent": map[string]any{"privileged": false}}} {
		pod := podOf(t, find(objects(t, values), "DaemonSet", "pitcrew-node"))
		i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "dcgm" })
		c := pod.Spec.Containers[i]
		if c.SecurityContext.Privileged != nil || *c.SecurityContext.AllowPrivilegeEscalation || fmt.Sprint(c.SecurityContext.Capabilities) != "&Capabilities{Add:[],Drop:[ALL],}" {
			t.Errorf("%+v", c.SecurityContext)
		}
		if len(c.VolumeMounts) != 1 || c.VolumeMounts[0].Name != "run" {
			t.Errorf("it mounts %+v; the agent's socket is enough, and no token is among it", c.VolumeMounts)
		}
		if *pod.Spec.AutomountServiceAccountToken {
			t.Error("every container of the pod has the account's token")
		}
	}
}
