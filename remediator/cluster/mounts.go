package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// volume is what a claim of a job says about the nodes that can mount it.
type volume struct {
	claim string // namespace/name
	name  string // of the persistent volume; empty while the claim is unbound
	terms []corev1.NodeSelectorTerm
	err   error // the claim or its volume could not be read
}

// reaches reports whether pods on a node can mount the volume. An unbound claim and a volume without node affinity reach every node. A volume
// that could not be read reaches none: its job would lose its pod and get none back.
func (v volume) reaches(n *fleet.Node) (ok bool, why string) {
	switch {
	case v.err != nil:
		return false, "cannot read the volume of claim " + v.claim + ": " + v.err.Error()
	case v.terms == nil || slices.ContainsFunc(v.terms, func(t corev1.NodeSelectorTerm) bool { return satisfies(n, t) }):
		return true, ""
	}
	return false, fmt.Sprintf("volume %s of claim %s cannot be mounted there", v.name, v.claim)
}

// How long a claim's volume is remembered, and how long that it could not be read. A claim stays bound to one volume, but can be deleted and
// created again. The templates of one gang often name the same claim.
const (
	volumeAge   = time.Minute
	volumeRetry = 2 * time.Second
)

// volumes remembers what claims are bound to. The watch does not hold claims: most clusters have far more of them than jobs need.
type volumes struct {
	mu sync.Mutex
	by map[string]knownVolume
}

type knownVolume struct {
	volume
	until time.Time
}

func (k *volumes) get(claim string, now time.Time) (volume, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.by[claim]
	return v.volume, ok && now.Before(v.until)
}

func (k *volumes) put(v volume, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by == nil {
		k.by = map[string]knownVolume{}
	}
	for claim, known := range k.by {
		if !now.Before(known.until) {
			delete(k.by, claim)
		}
	}
	age := volumeAge
	if v.err != nil {
		age = volumeRetry
	}
	k.by[v.claim] = knownVolume{v, now.Add(age)}
}

// volumesOf reads the volumes that a template's claims are bound to. Claims of ephemeral volumes are made and deleted with each pod, so they
// follow it to any node.
func (c *Cluster) volumesOf(ctx context.Context, namespace string, spec *corev1.PodSpec) (found []volume) {
	for i := range spec.Volumes {
		source := spec.Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		claim := namespace + "/" + source.ClaimName
		v, known := c.claims.get(claim, c.opts.Now())
		if !known {
			v = c.volume(ctx, namespace, source.ClaimName)
			c.claims.put(v, c.opts.Now())
		}
		found = append(found, v)
	}
	return found
}

func (c *Cluster) volume(ctx context.Context, namespace, claim string) volume {
	v := volume{claim: namespace + "/" + claim}
	pvc, err := read(ctx, c, func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
		return c.kube.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
	})
	if err != nil {
		v.err = wrap("claim "+v.claim, err)
		return v
	}
	if v.name = pvc.Spec.VolumeName; v.name == "" {
		return v
	}
	pv, err := read(ctx, c, func(ctx context.Context) (*corev1.PersistentVolume, error) {
		return c.kube.CoreV1().PersistentVolumes().Get(ctx, v.name, metav1.GetOptions{})
	})
	if err != nil {
		v.err = wrap("volume "+v.name, err)
		return v
	}
	if a := pv.Spec.NodeAffinity; a != nil && a.Required != nil {
		v.terms = a.Required.NodeSelectorTerms
	}
	return v
}
