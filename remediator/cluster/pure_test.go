package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestAPodsRequestsAreReckonedAsTheSchedulerDoes(t *testing.T) {
	cpu := func(q string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q)}}}
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := func(q string) corev1.Container { c := cpu(q); c.RestartPolicy = &always; return c }
	list := func(c ...corev1.Container) []corev1.Container { return c }
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want int64
	}{
		"containers add up":                         {corev1.PodSpec{Containers: list(cpu("1"), cpu("500m"))}, 1500},
		"a greedy init container counts alone":      {corev1.PodSpec{Containers: list(cpu("1")), InitContainers: list(cpu("3"), cpu("2"))}, 3000},
		"a modest one does not count":               {corev1.PodSpec{Containers: list(cpu("2")), InitContainers: list(cpu("1"))}, 2000},
		"sidecars run beside the containers":        {corev1.PodSpec{Containers: list(cpu("1")), InitContainers: list(sidecar("1"))}, 2000},
		"and beside the init containers after them": {corev1.PodSpec{Containers: list(cpu("1")), InitContainers: list(sidecar("1"), cpu("3"))}, 4000},
		"but not beside those before them":          {corev1.PodSpec{Containers: list(cpu("1")), InitContainers: list(cpu("3"), sidecar("1"))}, 3000},
		"overhead comes on top": {corev1.PodSpec{Containers: list(cpu("1")),
			Overhead: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}}, 1250},
		"the pod's own requests win": {corev1.PodSpec{Containers: list(cpu("1")), Resources: &corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5")}}}, 5000},
	} {
		t.Run(name, func(t *testing.T) {
			if got := whole(requests(&tc.spec))["cpu"]; got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}

func TestTheJobControllersBackOffIsReckonedAsItDoes(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		failed int32
		ended  time.Duration
		want   time.Duration
	}{
		{0, 0, 0}, {1, 2 * time.Second, 8 * time.Second}, {2, 2 * time.Second, 18 * time.Second}, {3, 0, 40 * time.Second},
		{6, 0, 320 * time.Second}, {7, 0, 10 * time.Minute}, {40, 0, 10 * time.Minute}, {1, time.Minute, 0},
	} {
		j := &batchv1.Job{}
		j.UID, j.Status.Failed = "job", tc.failed
		g := Gang{jobs: []*batchv1.Job{j}}
		if tc.failed > 0 {
			g.Members = []Member{{OwnerUID: "job", Phase: "Failed", Ended: now.Add(-tc.ended)}}
		}
		if got := g.backoff(now); got != tc.want {
			t.Errorf("%d failures, the last %v ago: %v, want %v", tc.failed, tc.ended, got, tc.want)
		}
	}
}

func TestErrorsAreFiledUnderWhatTheCallerCanDo(t *testing.T) {
	r := schema.GroupResource{Resource: "pods"}
	for _, tc := range []struct{ err, want error }{
		{apierrors.NewNotFound(r, "p"), ErrNotFound},
		{apierrors.NewConflict(r, "p", nil), ErrConflict},
		{apierrors.NewForbidden(r, "p", nil), ErrForbidden},
		{apierrors.NewTooManyRequests("flow control", 1), ErrRetry},
		{apierrors.NewTimeoutError("slow", 1), ErrRetry},
		{apierrors.NewGenericServerResponse(http.StatusBadGateway, "get", r, "p", "", 0, true), ErrRetry},
		{apierrors.NewServiceUnavailable("starting"), ErrRetry},
		{fmt.Errorf("get: %w", context.DeadlineExceeded), ErrRetry},
	} {
		if got := wrap("do it", tc.err); !errors.Is(got, tc.want) || !errors.Is(got, tc.err) {
			t.Errorf("%v is filed as %v", tc.err, got)
		}
	}
	if err := wrap("do it", context.Canceled); Retriable(err) {
		t.Error("a caller that gave up is told to try again")
	}
	if wrap("do it", nil) != nil {
		t.Error("nil became an error")
	}
}

func TestANameThatCannotBeATaintsValueIsRefused(t *testing.T) {
	for name, ok := range map[string]bool{"inc-1": true, "a": true, "": false, "-a": false, "a b": false, "a/b": false,
		"0123456789012345678901234567890123456789012345678901234567890123": false} {
		if err := checkIncident(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestAWaiterSeesEveryChangeThatComesAfterItLooked(t *testing.T) {
	var s signals
	looks := 0
	err := s.await(t.Context(), "k", func() (bool, error) {
		s.notify("k") // the change comes while we are still looking
		looks++
		return looks == 3, nil
	})
	if err != nil || looks != 3 {
		t.Fatalf("%d looks, %v", looks, err)
	}
	if len(s.subs) != 0 {
		t.Error("a waiter was left behind")
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = s.await(ctx, "k", func() (bool, error) { cancel(); s.notify("other"); return false, nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestALeaseAgesByOurClockFromWhenItWasSeenToMove(t *testing.T) {
	var r renewals
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	theirs := start.Add(-time.Hour) // their clock is an hour slow
	if _, ok := r.age("n", start); ok {
		t.Error("an unseen lease has an age")
	}
	r.saw("n", theirs, start)
	r.saw("n", theirs, start.Add(5*time.Second)) // seen again, not renewed
	if got, _ := r.age("n", start.Add(10*time.Second)); got != 10*time.Second {
		t.Errorf("%v", got)
	}
	r.saw("n", theirs.Add(10*time.Second), start.Add(10*time.Second))
	if got, _ := r.age("n", start.Add(11*time.Second)); got != time.Second {
		t.Errorf("%v after a renewal", got)
	}
}

func TestAPolicyIsLeftAloneWhenItSaysAllThatOursSays(t *testing.T) {
	have := map[string]any{"a": []any{map[string]any{"b": int64(1), "defaulted": true}}, "more": "x"}
	for name, tc := range map[string]struct {
		want any
		ok   bool
	}{
		"a part of it":   {map[string]any{"a": []any{map[string]any{"b": float64(1)}}}, true},
		"another value":  {map[string]any{"a": []any{map[string]any{"b": int64(2)}}}, false},
		"a longer list":  {map[string]any{"a": []any{map[string]any{"b": int64(1)}, "x"}}, false},
		"a missing key":  {map[string]any{"c": "x"}, false},
		"another nature": {map[string]any{"more": map[string]any{"y": 1}}, false},
	} {
		if contains(have, tc.want) != tc.ok {
			t.Errorf("%s: %v", name, !tc.ok)
		}
	}
}

func TestASlimPodKeepsWhatIsRead(t *testing.T) {
	now := int64(5)
	p := &corev1.Pod{}
	p.Name, p.UID, p.Finalizers, p.DeletionGracePeriodSeconds = "p", "u", []string{jobTrackingFinalizer}, &now
	p.Annotations = map[string]string{AnnotationFastReplace: "i", corev1.LastAppliedConfigAnnotation: "long"}
	p.Spec.NodeName = "n"
	p.Spec.Containers = []corev1.Container{{Name: "a", Env: []corev1.EnvVar{{Name: "BULK"}}, Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	p.Status.Phase = corev1.PodRunning
	o, err := newSlimmer().pod(p)
	if err != nil {
		t.Fatal(err)
	}
	got := o.(*corev1.Pod)
	if diff := cmp.Diff([]string{"p", "u", "n", "Running", "i"}, []string{got.Name, string(got.UID), got.Spec.NodeName, string(got.Status.Phase), got.Annotations[AnnotationFastReplace]}); diff != "" {
		t.Error(diff)
	}
	if len(got.Annotations) != 1 || len(got.Spec.Containers) != 1 || len(got.Spec.Containers[0].Env) != 0 || len(got.Finalizers) != 1 || *got.DeletionGracePeriodSeconds != 5 {
		t.Errorf("%+v", got)
	}
	if whole(got.Spec.Containers[0].Resources.Requests)["cpu"] != 1000 {
		t.Error("its requests were lost")
	}
}
