package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew/pitcrew/deploy"
)

// Steering is how a replacement pod can be sent to its reserved node on this cluster.
type Steering string

// From the best way down.
const (
	SteerPolicy Steering = "policy" // the placement policy stamps it
	SteerCordon Steering = "cordon" // the scheduler chooses, and cordons keep it off bad nodes
)

// policyKinds are the objects of deploy/placement-policy.yaml.
var policyKinds = map[string]schema.GroupVersionResource{
	"MutatingAdmissionPolicy":        admissionv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicies"),
	"MutatingAdmissionPolicyBinding": admissionv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicybindings"),
}

// EnsurePlacementPolicy puts the placement policy in force where the API server has MutatingAdmissionPolicy v1 (Kubernetes 1.36), and
// says which way of steering this cluster has. The remediator's own account may only look whether the policy is there; then ErrNoPolicy
// says that an administrator has to apply the file. A pod that cannot be steered is kept off bad nodes by their cordon alone.
func (c *Cluster) EnsurePlacementPolicy(ctx context.Context) (Steering, error) {
	const op = "placement policy"
	ok, err := c.served(ctx, policyKinds["MutatingAdmissionPolicy"])
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	if !ok {
		return SteerCordon, nil
	}
	for doc := range strings.SplitSeq(string(deploy.PlacementPolicy), "\n---\n") {
		want := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &want.Object); err != nil {
			return "", fmt.Errorf("%s: deploy/placement-policy.yaml: %w", op, err)
		}
		if want.GetKind() == "MutatingAdmissionPolicyBinding" {
			if err := unstructured.SetNestedField(want.Object, c.opts.Namespace, "spec", "paramRef", "namespace"); err != nil {
				return "", fmt.Errorf("%s: %w", op, err)
			}
		}
		if err := c.ensure(ctx, want); err != nil {
			return "", fmt.Errorf("%s: %w", op, err)
		}
	}
	return SteerPolicy, nil
}

// ensure applies an object unless what is there already has all that it says.
func (c *Cluster) ensure(ctx context.Context, want *unstructured.Unstructured) error {
	kind, name := want.GetKind(), want.GetName()
	client := c.dyn.Resource(policyKinds[kind])
	have, err := read(ctx, c, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return client.Get(ctx, name, metav1.GetOptions{})
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return wrap(kind+" "+name, err)
	}
	if err == nil && contains(have.Object["spec"], want.Object["spec"]) {
		return nil
	}
	err = c.write(ctx, Write{Verb: "apply", Kind: kind, Name: name, What: "placement policy"}, func(ctx context.Context) error {
		_, err := client.Apply(ctx, name, want, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		return err
	})
	if apierrors.IsForbidden(err) {
		return errors.Join(fmt.Errorf("%s %s is missing or differs: %w: run kubectl apply -f deploy/placement-policy.yaml", kind, name, ErrNoPolicy), err)
	}
	return wrap(kind+" "+name, err)
}

// contains says whether have says everything that want says; the API server adds defaults.
func contains(have, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		for key, value := range want {
			if !ok || !contains(have[key], value) {
				return false
			}
		}
		return ok
	case []any:
		have, ok := have.([]any)
		if !ok || len(have) != len(want) {
			return false
		}
		for i := range want {
			if !contains(have[i], want[i]) {
				return false
			}
		}
		return true
	}
	return fmt.Sprint(have) == fmt.Sprint(want)
}
