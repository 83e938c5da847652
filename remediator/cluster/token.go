package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/callout"
)

// What an API server says of a token beside its account.
const (
	boundNode   = "authentication.kubernetes.io/node-name"
	boundPod    = "authentication.kubernetes.io/pod-name"
	boundPodUID = "authentication.kubernetes.io/pod-uid"
)

// ReviewToken has the API server say whom a token is for: it checks the signature, the audience, the end, and that the pod it is bound to
// is still there. It may remember its answer for 10 s. What it refuses wraps callout.ErrRefused.
func (c *Cluster) ReviewToken(ctx context.Context, token string) (bus.Bearer, error) {
	says, err := bus.ReadBearer(token) // when it ends is not in the answer, and no longer in doubt after it
	if err != nil {
		return bus.Bearer{}, fmt.Errorf("%w: %w", callout.ErrRefused, err)
	}
	review, err := c.kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{bus.Audience}}}, metav1.CreateOptions{})
	if err != nil {
		return bus.Bearer{}, fmt.Errorf("review a token: %w; is deploy/rbac.yaml applied?", err)
	}
	s := review.Status
	account, ok := strings.CutPrefix(s.User.Username, "system:serviceaccount:")
	namespace, name, _ := strings.Cut(account, ":")
	if !s.Authenticated || !ok || !slices.Contains(s.Audiences, bus.Audience) {
		return bus.Bearer{}, fmt.Errorf("%w: %s", callout.ErrRefused, s.Error)
	}
	extra := func(key string) string {
		if v := s.User.Extra[key]; len(v) == 1 {
			return v[0]
		}
		return ""
	}
	return bus.Bearer{
		Namespace: namespace, Account: name, Node: extra(boundNode), Pod: extra(boundPod), PodUID: extra(boundPodUID), Expires: says.Expires,
	}, nil
}
