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

// policyKinds are the objects of deploy/placement-policy.yaml.
var policyKinds = map[string]schema.GroupVersionResource{
	"MutatingAdmissionPolicy":        admissionv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicies"),
	"MutatingAdmissionPolicyBinding": admissionv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicybindings"),
}

// DecideSteering finds out how this cluster steers replacements, and remembers it for Steering: by the placement policy where the API server
// has MutatingAdmissionPolicy v1 (Kubernetes 1.36) and an administrator or the chart has installed it, else by the webhook where that is
// installed. It changes nothing. SteerCordon comes with an *Unsteered; any other error is the API server's and decides nothing.
func (c *Cluster) DecideSteering(ctx context.Context) (Steering, error) {
	how, err := c.lookForSteering(ctx)
	var u *Unsteered
	if err != nil && !errors.As(err, &u) {
		return "", fmt.Errorf("how replacements are steered: %w", err)
	}
	c.steers.decide(how, u, c.opts.Now())
	return how, err
}

func (c *Cluster) lookForSteering(ctx context.Context) (Steering, error) {
	served, err := c.served(ctx, policyKinds["MutatingAdmissionPolicy"])
	if err != nil {
		return "", err
	}
	none := &Unsteered{Reason: UnsteeredAbsent}
	if served {
		err := c.policyInForce(ctx)
		if err == nil {
			return SteerPolicy, nil
		}
		if !errors.Is(err, ErrNoPolicy) {
			return "", err
		}
		none = &Unsteered{Reason: UnsteeredMissing, Err: err}
	}
	installed, err := c.webhookInstalled(ctx)
	switch {
	case err != nil:
		return "", err
	case installed:
		return SteerWebhook, nil
	}
	return SteerCordon, none
}

// policyInForce compares what is installed with deploy/placement-policy.yaml. ErrNoPolicy: it is missing or says something else.
func (c *Cluster) policyInForce(ctx context.Context) error {
	for doc := range strings.SplitSeq(string(deploy.PlacementPolicy), "\n---\n") {
		want := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &want.Object); err != nil {
			return fmt.Errorf("deploy/placement-policy.yaml: %w", err)
		}
		if want.GetKind() == "MutatingAdmissionPolicyBinding" {
			if err := unstructured.SetNestedField(want.Object, c.opts.Namespace, "spec", "paramRef", "namespace"); err != nil {
				return err
			}
		}
		kind, name := want.GetKind(), want.GetName()
		have, err := read(ctx, c, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return c.dyn.Resource(policyKinds[kind]).Get(ctx, name, metav1.GetOptions{})
		})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return fmt.Errorf("%s %s: %w: %w", kind, name, ErrNoPolicy, err)
		case err != nil:
			return wrap(kind+" "+name, err)
		case !contains(have.Object["spec"], want.Object["spec"]):
			return fmt.Errorf("%s %s differs from deploy/placement-policy.yaml: %w", kind, name, ErrNoPolicy)
		}
	}
	return nil
}

// webhookInstalled reports whether the API server is told to call the remediator's webhook, with a certificate to believe.
func (c *Cluster) webhookInstalled(ctx context.Context) (bool, error) {
	have, err := read(ctx, c, func(ctx context.Context) (*admissionv1.MutatingWebhookConfiguration, error) {
		return c.kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, PlacementPolicyName, metav1.GetOptions{})
	})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil
	}
	if err != nil {
		return false, wrap("MutatingWebhookConfiguration "+PlacementPolicyName, err)
	}
	return len(have.Webhooks) > 0 && len(have.Webhooks[0].ClientConfig.CABundle) > 0, nil
}

// contains reports whether have holds everything that want holds; the API server adds defaults.
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
