package cluster

import (
	"errors"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// watched is a Cluster whose watches hold what the test puts there.
func watched(t *testing.T, now func() time.Time) *Cluster {
	t.Helper()
	c, err := New(&rest.Config{Host: "http://127.0.0.1:1"}, Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *Cluster) reserveInWatch(t *testing.T, r Reservation) {
	t.Helper()
	m := r.configMap(c.opts.Namespace, r.Node)
	m.CreationTimestamp = metav1.NewTime(c.opts.Now())
	if err := c.reservations.GetStore().Add(m); err != nil {
		t.Fatal(err)
	}
}

func memberOf(owner string, index int, host string, created time.Time) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "train", Annotations: map[string]string{completionIndex: strconv.Itoa(index)},
		CreationTimestamp: metav1.NewTime(created), OwnerReferences: []metav1.OwnerReference{{UID: types.UID(owner)}}}}
	if host != "" {
		p.Spec.NodeSelector = map[string]string{hostnameLabel: host}
	}
	return p
}

// An API server can lose the policy's parameters for good (its binding deleted and made again); nothing but its pods shows that.
func TestReplacementsWithoutAStampShowThatSteeringIsBroken(t *testing.T) {
	now := time.Now()
	c := watched(t, func() time.Time { return now })
	c.steers.decide(SteerPolicy, nil, now)
	index := 0
	c.reserveInWatch(t, Reservation{Incident: "inc-1", Node: "a3", Namespace: "train", OwnerUID: "u1", Index: &index})
	steered := func(want bool) {
		t.Helper()
		how, err := c.Steering(t.Context())
		var u *Unsteered
		if want != (err == nil && how == SteerPolicy) || !want && (!errors.As(err, &u) || u.Reason != UnsteeredMissed) {
			t.Errorf("steered %v is wanted: %s, %v", want, how, err)
		}
	}
	unstamped := func() { c.observeStamp(memberOf("u1", 0, "", now)) }
	unstamped()
	unstamped()
	c.observeStamp(memberOf("u1", 0, "", now.Add(-time.Hour))) // the pod that is to be replaced
	c.observeStamp(memberOf("u1", 1, "", now))                 // another member
	c.observeStamp(memberOf("u2", 0, "", now))                 // another job
	c.observeStamp(memberOf("u1", 0, "of-the-template", now))  // pinned by its owner
	steered(true)
	c.observeStamp(memberOf("u1", 0, "a3", now))
	unstamped()
	unstamped()
	steered(true)
	unstamped()
	steered(false)
	c.steers.decide(SteerPolicy, nil, now) // minutes later it gets one more try
	steered(true)
	unstamped()
	steered(false)
}

func TestAPodIsStampedByTheNewestReservationThatMeansIt(t *testing.T) {
	now := time.Now()
	c := watched(t, func() time.Time { return now })
	zero, two := 0, 2
	c.reserveInWatch(t, Reservation{Incident: "old", Node: "a1", OwnerUID: "u1", Index: &zero})
	now = now.Add(time.Minute)
	c.reserveInWatch(t, Reservation{Incident: "new", Node: "a2", OwnerUID: "u1", Index: &zero})
	c.reserveInWatch(t, Reservation{Incident: "set", Node: "a3", JobSetUID: "s1", JobIndex: &two, Index: &zero})
	c.reserveInWatch(t, Reservation{Incident: "away", Node: "a4", Namespace: "elsewhere", OwnerUID: "u9"})
	ofSet := memberOf("u-new", 0, "", now)
	ofSet.Labels = map[string]string{"jobset.sigs.k8s.io/jobset-uid": "s1", "jobset.sigs.k8s.io/job-global-index": "2"}
	another := ofSet.DeepCopy()
	another.Labels["jobset.sigs.k8s.io/job-global-index"] = "1"
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want Stamp
	}{
		"two incidents reserve for it":         {memberOf("u1", 0, "", now), Stamp{"new", "a2"}},
		"another index":                        {memberOf("u1", 1, "", now), Stamp{}},
		"another owner":                        {memberOf("u2", 0, "", now), Stamp{}},
		"no owner":                             {&corev1.Pod{}, Stamp{}},
		"by its JobSet":                        {ofSet, Stamp{"set", "a3"}},
		"another job of the JobSet":            {another, Stamp{}},
		"the same owner, in another namespace": {memberOf("u9", 0, "", now), Stamp{}},
	} {
		if got, ok := c.StampOf(test.pod); got != test.want || ok != (test.want != Stamp{}) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}
