package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Steering is how a replacement pod is sent to its reserved node on this cluster.
type Steering string

// The ways of steering, best first.
const (
	SteerPolicy  Steering = "policy"  // a MutatingAdmissionPolicy in the API server (Kubernetes 1.36)
	SteerWebhook Steering = "webhook" // the remediator's mutating webhook
	SteerCordon  Steering = "cordon"  // not steered: the scheduler chooses, and cordons keep it off bad nodes
)

// UnsteeredReason is why replacements are left to the scheduler.
type UnsteeredReason string

const (
	UnsteeredAbsent  UnsteeredReason = "absent"
	UnsteeredMissing UnsteeredReason = "not-installed"
	UnsteeredUnknown UnsteeredReason = "unknown"
	UnsteeredUnseen  UnsteeredReason = "not-seen"
	UnsteeredMissed  UnsteeredReason = "not-stamped"
)

// unsteeredText is what people read.
var unsteeredText = map[UnsteeredReason]string{
	UnsteeredAbsent:  "the API server has no MutatingAdmissionPolicy v1 and Pitcrew's webhook is not installed: install the chart with webhook.enabled=auto",
	UnsteeredMissing: "the placement policy is missing or differs: apply deploy/placement-policy.yaml, or install the chart with placementPolicy=auto",
	UnsteeredUnknown: "the API server did not say how replacements are steered",
	UnsteeredUnseen:  "the reservation did not appear in the API server's watch in time",
	UnsteeredMissed:  "the last replacements carried no reservation",
}

// Unsteered reports that steering is unconfirmed: the scheduler may send the replacement anywhere. It is an answer, not a failure to be
// retried: release the reservation, and read the replacement back (ReadBack, or Landed to change nothing).
type Unsteered struct {
	Reason UnsteeredReason
	Err    error // what the API server or the context said; nil: nothing
}

func (u *Unsteered) Error() string {
	text := "steering unconfirmed: " + unsteeredText[u.Reason]
	if u.Err != nil {
		text += ": " + u.Err.Error()
	}
	return text
}

// Unwrap makes every Unsteered an ErrNoPolicy.
func (u *Unsteered) Unwrap() []error {
	if u.Err == nil {
		return []error{ErrNoPolicy}
	}
	return []error{ErrNoPolicy, u.Err}
}

const (
	// steeringKept is how long a decision how to steer holds; it is made again at the next reservation after that. That nothing steers holds
	// for a few seconds at first, since an install creates the policy after the remediator, and for twice as long each time.
	steeringKept     = 5 * time.Minute
	unsteeredAtFirst = 5 * time.Second
	// seenWithin bounds the wait for a reservation to appear in the watch.
	seenWithin = 2 * time.Second
	// settle is the head start that the API server's policy and the webhook's other replicas get: they read the same watch as we do, each
	// at its own pace. The Job controller needs 15 ms at least before it makes the replacement.
	settle = 25 * time.Millisecond
	// maxMissed is how many replacements in a row may come without a stamp before steering counts as broken.
	maxMissed = 3
)

// steering remembers the decision and what the replacements since have shown.
type steering struct {
	mu      sync.Mutex
	decided Steering
	why     *Unsteered // of SteerCordon
	until   time.Time  // when it is to be made again
	kept    time.Duration
	missed  int // unstamped replacements in a row
}

// Steering decides how replacements are steered, and keeps the decision for minutes. An error of the API server leaves the last decision in force.
// With SteerCordon comes an *Unsteered.
func (c *Cluster) Steering(ctx context.Context) (Steering, error) {
	s := &c.steers
	s.mu.Lock()
	decided, why, fresh := s.decided, s.why, c.opts.Now().Before(s.until)
	s.mu.Unlock()
	if decided == "" || !fresh {
		how, err := c.DecideSteering(ctx)
		var u *Unsteered
		switch {
		case err == nil || errors.As(err, &u):
			decided, why = how, u
		case decided == "":
			return SteerCordon, &Unsteered{Reason: UnsteeredUnknown, Err: err}
		}
	}
	s.mu.Lock()
	missed := s.missed
	s.mu.Unlock()
	switch {
	case why != nil:
		return SteerCordon, why
	case missed >= maxMissed:
		return SteerCordon, &Unsteered{Reason: UnsteeredMissed, Err: fmt.Errorf("%d in a row, though the %s is installed", missed, decided)}
	}
	return decided, nil
}

// decide remembers a decision. Steering that had counted as broken gets one more try.
func (s *steering) decide(how Steering, why *Unsteered, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case why == nil:
		s.kept = steeringKept
	case s.why == nil:
		s.kept = unsteeredAtFirst
	default:
		s.kept = min(2*s.kept, steeringKept)
	}
	s.decided, s.why, s.until = how, why, now.Add(s.kept)
	s.missed = min(s.missed, maxMissed-1)
}

// saw counts a replacement by whether it was stamped.
func (s *steering) saw(stamped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missed++; stamped {
		s.missed = 0
	}
}

func reservationKey(name string) string { return "reservation/" + name }

// WaitReservationSeen returns when a pod of the reserved member will be sent to the node: a way of steering is installed, and the reservation
// has appeared in the API server's watch, which the policy and the webhook read too. It writes nothing. Any other answer is an *Unsteered
// (errors.Is ErrNoPolicy), at once or within two seconds; it never asks to be retried. The replacement is still to be read back: of several
// API servers one may lag.
func (c *Cluster) WaitReservationSeen(ctx context.Context, r Reservation) error {
	op := fmt.Sprintf("reservation of node %s for incident %s", r.Node, r.Incident)
	if err := r.check(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	bounded, cancel := context.WithTimeout(ctx, seenWithin)
	defer cancel()
	if _, err := c.Steering(bounded); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	name := r.name()
	err := c.changes.await(bounded, reservationKey(name), func() (bool, error) {
		m, ok := cached[*corev1.ConfigMap](c.reservations, c.opts.Namespace+"/"+name)
		return ok && m.Data[keyNode] == r.Node, nil
	})
	if err == nil {
		select {
		case <-time.After(settle):
		case <-bounded.Done():
			err = context.Cause(bounded)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, &Unsteered{Reason: UnsteeredUnseen, Err: err})
	}
	return nil
}

// Stamp is what steers a pod to its reserved node.
type Stamp struct {
	Incident string // the value of the taint TaintReserved to tolerate
	Hostname string // the value of the label kubernetes.io/hostname to select
}

// StampOf returns the stamp of a pod that is about to be created, by the reservations in the watch, as the placement policy decides it. If
// several reservations mean the pod, the newest counts.
func (c *Cluster) StampOf(p *corev1.Pod) (Stamp, bool) {
	m := c.reservationOf(p)
	if m == nil {
		return Stamp{}, false
	}
	return Stamp{Incident: m.Data[keyIncident], Hostname: m.Data[keyHostname]}, true
}

// reservationOf finds the newest reservation that means a pod.
func (c *Cluster) reservationOf(p *corev1.Pod) (newest *corev1.ConfigMap) {
	for _, owner := range ownersOf(p) {
		for _, m := range indexed[*corev1.ConfigMap](c.reservations, byOwner, owner) {
			if reservedFor(m, p) && (newest == nil || newest.CreationTimestamp.Before(&m.CreationTimestamp)) {
				newest = m
			}
		}
	}
	return newest
}

// watchSteering wakes those who wait for a reservation, and learns from each new pod whether its reservation reached it.
func (c *Cluster) watchSteering() error {
	if err := onChange(c, c.reservations, func(m *corev1.ConfigMap, _ bool) { c.changes.notify(reservationKey(m.Name)) }); err != nil {
		return err
	}
	_, err := c.pods.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{AddFunc: func(o any, listed bool) {
		if p, ok := o.(*corev1.Pod); ok && !listed {
			c.observeStamp(p)
		}
	}})
	return err
}

func (c *Cluster) observeStamp(p *corev1.Pod) {
	m := c.reservationOf(p)
	if m == nil || p.CreationTimestamp.Before(&m.CreationTimestamp) {
		return
	}
	switch p.Spec.NodeSelector[hostnameLabel] {
	case m.Data[keyHostname]:
		c.steers.saw(true)
	case "":
		c.steers.saw(false)
		c.log.Warn("a replacement carries no reservation", "pod", p.Namespace+"/"+p.Name, "incident", m.Data[keyIncident], "node", m.Data[keyNode])
	}
}
