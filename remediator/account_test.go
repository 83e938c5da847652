package remediator_test

import (
	"sync"
	"testing"

	"github.com/pitcrew/pitcrew/deploy"
	"github.com/pitcrew/pitcrew/sandbox"
)

var enforcer struct {
	once       sync.Once
	kubeconfig string
	err        error
}

// asEnforcer installs Pitcrew's rights and placement policy, once, and returns a kubeconfig with the remediator's own token: every test of this
// package acts with the rights that an installed remediator has.
func asEnforcer(t testing.TB, s *sandbox.Sandbox) string {
	t.Helper()
	enforcer.once.Do(func() {
		if enforcer.err = s.Apply(t.Context(), deploy.RBAC, deploy.RBACEnforce, deploy.RemediatorBounds, deploy.PlacementPolicy); enforcer.err == nil {
			enforcer.kubeconfig, enforcer.err = s.AccountKubeconfig(t.Context(), "pitcrew-system", "pitcrew-remediator")
		}
	})
	if enforcer.err != nil {
		t.Fatal(enforcer.err)
	}
	return enforcer.kubeconfig
}
