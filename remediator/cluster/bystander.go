package cluster

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// bystander is all that the cache keeps of a DaemonSet's pod: it belongs to no gang, and only takes room on its node. Nineteen of twenty pods of
// a GPU cluster are such, and a whole Pod is ten times as large. Of metav1.Object it has what an informer asks for; the rest would panic.
type bystander struct {
	metav1.Object

	namespace, name, version, node string
	uid                            types.UID
	ended                          bool
	asked                          corev1.ResourceList // shared
}

func (b *bystander) GetName() string                             { return b.name }
func (b *bystander) GetNamespace() string                        { return b.namespace }
func (b *bystander) GetUID() types.UID                           { return b.uid }
func (b *bystander) GetResourceVersion() string                  { return b.version }
func (b *bystander) GetOwnerReferences() []metav1.OwnerReference { return nil }

func (s *slimmer) bystander(p *corev1.Pod) *bystander {
	return &bystander{namespace: s.str(p.Namespace), name: p.Name, version: p.ResourceVersion, node: s.str(placeOf(p)), uid: p.UID, ended: ended(p),
		asked: s.list(requests(&p.Spec))}
}

// placeOf is the node that a pod is bound to, or else nominated to.
func placeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	return p.Status.NominatedNodeName
}
