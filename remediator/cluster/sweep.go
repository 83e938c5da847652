package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// SweepReservations ends every reservation whose time is up, and those of incidents that are not open, unless they are younger than a minute:
// the record of a new incident may be on its way. Repeating Reserve renews the time, so an open incident that still needs its node keeps it. The
// leader calls this now and then; it returns the incidents that were swept. A failure to release one does not keep the others.
func (c *Cluster) SweepReservations(ctx context.Context, open func(incident string) bool) (swept []string, err error) {
	forgotten := map[string]bool{}
	held := map[string]bool{}
	for _, o := range c.reservations.GetStore().List() {
		m, ok := o.(*corev1.ConfigMap)
		if !ok || m.Data[keyIncident] == "" {
			continue
		}
		incident := m.Data[keyIncident]
		held[incident] = true
		if c.ended(m) || !open(incident) && c.opts.Now().Sub(m.CreationTimestamp.Time) > sweepAfter {
			forgotten[incident] = true
		}
	}
	for _, n := range c.Fleet() { // a taint without its ConfigMap: a crash came between the two
		if n.Reserved != "" && !held[n.Reserved] && !open(n.Reserved) {
			forgotten[n.Reserved] = true
		}
	}
	var errs []error
	for _, incident := range slices.Sorted(maps.Keys(forgotten)) {
		if err := c.Release(ctx, incident); err != nil {
			errs = append(errs, err)
			continue
		}
		c.log.Info("ended forgotten reservations", "incident", incident)
		swept = append(swept, incident)
	}
	if err := errors.Join(errs...); err != nil {
		return swept, fmt.Errorf("sweep reservations: %w", err)
	}
	return swept, nil
}

// sweepAfter spares reservations whose incident may not be known yet.
const sweepAfter = time.Minute

// ended reports that a reservation's own end has come.
func (c *Cluster) ended(m *corev1.ConfigMap) bool {
	end, err := time.Parse(time.RFC3339, m.Annotations[AnnotationExpires])
	return err == nil && c.opts.Now().After(end)
}
