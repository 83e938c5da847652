package cluster_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestASurveyAnswersForAnOperator(t *testing.T) {
	s := kube(t)
	survey, err := cluster.SurveyAt(s.Config(), "")
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	if address, version, err := survey.Server(ctx); err != nil || address != s.Config().Host || !strings.HasPrefix(version, "v1.") {
		t.Errorf("%s, %s, %v", address, version, err)
	}
	if how, why, err := survey.Steering(ctx); err != nil || how != cluster.SteerPolicy || why != "" {
		t.Errorf("%s, %s, %v", how, why, err)
	}
	for role, want := range map[string]bool{"observe": true, "enforce": true, "none": false} {
		if bound, err := survey.Role(ctx, role); err != nil || bound != want {
			t.Errorf("role %s: %v, %v", role, bound, err)
		}
	}
	if f, err := survey.Fleet(ctx); err != nil || f.Nodes == 0 || f.GPU == 0 || f.GPU > f.Nodes || f.Quarantined != 0 {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := survey.HealedNamespaces(ctx); err != nil {
		t.Error(err)
	}
}

func TestASurveyTellsALeaderFromOneThatStopped(t *testing.T) {
	s := kube(t)
	survey, err := cluster.SurveyAt(s.Config(), "survey")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := survey.Leader(within(t)); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("no lease: %v", err)
	}
	made, err := cluster.SurveyAt(s.Config(), "pitcrew-system")
	if err != nil {
		t.Fatal(err)
	}
	holder, seconds := "pod-1", int32(15)
	leases := s.Client().CoordinationV1().Leases("pitcrew-system")
	for ago, want := range map[time.Duration]bool{0: true, time.Minute: false} {
		renewed := metav1.NewMicroTime(time.Now().Add(-ago))
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "pitcrew-remediator", Namespace: "pitcrew-system"},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed}}
		if _, err := leases.Create(t.Context(), l, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		who, at, valid, err := made.Leader(within(t))
		if err != nil || who != holder || valid != want || at.Unix() != renewed.Unix() {
			t.Errorf("renewed %v ago: %s, %v, %v, %v", ago, who, at, valid, err)
		}
		if err := leases.Delete(t.Context(), l.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASurveyWithoutAnAPIServerSaysWhichAddressItTried(t *testing.T) {
	survey, err := cluster.SurveyAt(&rest.Config{Host: "http://127.0.0.1:1"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := survey.Server(within(t)); err == nil || !strings.Contains(err.Error(), "API server http://127.0.0.1:1: ") {
		t.Errorf("%v", err)
	}
	if _, err := survey.Fleet(within(t)); err == nil {
		t.Error("a fleet without an API server")
	}
}
