package cluster

import (
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/event"
)

const rackLabel = "pitcrew.dev/rack"

// racks is a gang of three on n0 to n2, one in each rack, whose template has the terms, and a pod of another job on n3.
func racks(t *testing.T, terms ...corev1.PodAffinityTerm) Gang {
	c := still(t)
	mode, size := batchv1.IndexedCompletion, int32(3)
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: "ml", UID: "job"}, Spec: batchv1.JobSpec{CompletionMode: &mode, Completions: &size}}
	j.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	if err := c.jobs.GetStore().Add(j); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		c.set(testNode(fmt.Sprint("n", i), 8, map[string]string{rackLabel: fmt.Sprint("r", i)}))
	}
	for i := range int(size) {
		p := testPod(fmt.Sprint("pod-", i), fmt.Sprint("n", i), 8)
		p.Annotations[completionIndex], p.Labels = fmt.Sprint(i), map[string]string{"team": "llm", "run": "1"}
		c.set(p)
	}
	other := testPod("other", "n3", 1)
	other.OwnerReferences, other.Labels = nil, map[string]string{"team": "vision", "run": "2"}
	c.set(other)
	g, err := c.Gang(t.Context(), event.Job{Kind: "Job", Namespace: "ml", Name: "job", UID: "job"})
	if err != nil || len(g.Members) != 3 {
		t.Fatalf("%d members, %v", len(g.Members), err)
	}
	return g
}

func TestRequiredAntiAffinityIsReadFromTheTemplate(t *testing.T) {
	choose := func(labels map[string]string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: labels}
	}
	for name, c := range map[string]struct {
		term   corev1.PodAffinityTerm
		apart  bool
		barred []string
	}{
		"its own pods":                 {corev1.PodAffinityTerm{LabelSelector: choose(map[string]string{"team": "llm"})}, true, nil},
		"another team's pods":          {corev1.PodAffinityTerm{LabelSelector: choose(map[string]string{"team": "vision"})}, false, []string{"r3"}},
		"all pods of the namespace":    {corev1.PodAffinityTerm{LabelSelector: choose(nil)}, true, []string{"r3"}},
		"all pods of another one":      {corev1.PodAffinityTerm{LabelSelector: choose(nil), Namespaces: []string{"elsewhere"}}, false, nil},
		"pods of the same run":         {corev1.PodAffinityTerm{LabelSelector: choose(nil), MatchLabelKeys: []string{"run"}}, true, nil},
		"pods of other runs":           {corev1.PodAffinityTerm{LabelSelector: choose(nil), MismatchLabelKeys: []string{"run"}}, false, []string{"r3"}},
		"nobody: it has no selector":   {corev1.PodAffinityTerm{}, false, nil},
		"namespaces that are not seen": {corev1.PodAffinityTerm{LabelSelector: choose(nil), NamespaceSelector: choose(map[string]string{"x": "y"})}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.term.TopologyKey = rackLabel
			g := racks(t, c.term)
			r := g.PlacementRequest(g.Members[0])
			if got := slices.Contains(r.Apart, rackLabel); got != c.apart {
				t.Errorf("apart %v, want %v", r.Apart, c.apart)
			}
			var barred []string
			for v, pod := range r.Barred[rackLabel] {
				if barred = append(barred, v); pod != "ml/p-other" {
					t.Errorf("%s is taken by %s", v, pod)
				}
			}
			if !slices.Equal(barred, c.barred) {
				t.Errorf("barred %v, want %v", barred, c.barred)
			}
		})
	}
}

func TestPodsThatAvoidTheMemberBarTheirPlaces(t *testing.T) {
	choose := func(labels map[string]string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: labels}
	}
	term := func(edit func(*corev1.PodAffinityTerm)) []corev1.PodAffinityTerm {
		out := corev1.PodAffinityTerm{TopologyKey: rackLabel, LabelSelector: choose(map[string]string{"team": "llm"}), Namespaces: []string{"ml"}}
		edit(&out)
		return []corev1.PodAffinityTerm{out}
	}
	for name, c := range map[string]struct {
		terms  []corev1.PodAffinityTerm
		edit   func(*corev1.Pod)
		barred bool
	}{
		"it selects the member":                    {term(func(*corev1.PodAffinityTerm) {}), nil, true},
		"it selects others":                        {term(func(a *corev1.PodAffinityTerm) { a.LabelSelector = choose(map[string]string{"team": "vision"}) }), nil, false},
		"it means its own namespace":               {term(func(a *corev1.PodAffinityTerm) { a.Namespaces = nil }), nil, false},
		"it has ended":                             {term(func(*corev1.PodAffinityTerm) {}), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"it is not bound":                          {term(func(*corev1.PodAffinityTerm) {}), func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"it avoids the member's run, which is its": {term(func(a *corev1.PodAffinityTerm) { a.MatchLabelKeys = []string{"run"} }), func(p *corev1.Pod) { p.Labels["run"] = "1" }, true},
		"it avoids its own run, which is another":  {term(func(a *corev1.PodAffinityTerm) { a.MatchLabelKeys = []string{"run"} }), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := racks(t)
			p := testPod("guarded", "n3", 1)
			p.Namespace, p.OwnerReferences, p.Labels = "serving", nil, map[string]string{"run": "3"}
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: c.terms}}
			if c.edit != nil {
				c.edit(p)
			}
			kept, err := g.watched.slimmer.pod(p)
			if err != nil {
				t.Fatal(err)
			}
			g.watched.set(kept)
			barred := g.PlacementRequest(g.Members[0]).Barred[rackLabel]
			if pod, ok := barred["r3"]; ok != c.barred || ok && pod != "serving/p-guarded" || len(barred) > 1 {
				t.Errorf("barred %v, want r3: %v", barred, c.barred)
			}
		})
	}
}

func TestPodsOfTheGangDoNotBarEachOthersPlacesAsStrangers(t *testing.T) {
	g := racks(t, corev1.PodAffinityTerm{TopologyKey: rackLabel, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "llm"}}})
	for i, m := range g.Members {
		p := testPod(fmt.Sprint("pod-", i), m.Node, 8)
		p.Labels = m.labels
		p.Spec.Affinity = m.template.Spec.Affinity.DeepCopy()
		g.watched.set(p)
	}
	if r := g.PlacementRequest(g.Members[0]); len(r.Barred) != 0 || !slices.Equal(r.Apart, []string{rackLabel}) {
		t.Errorf("apart %v, barred %v", r.Apart, r.Barred)
	}
}
