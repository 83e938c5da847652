package cluster_test

import (
	"flag"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew/pitcrew/deploy"
)

// This file's name sorts last, so that its test runs after all others.

// rights collects what a client asks for, as RBAC sees it: "verb group/resource[/subresource] namespace-or-*".
type rights struct {
	mu   sync.Mutex
	used map[string]bool
}

var usedRights = &rights{used: map[string]bool{}}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (u *rights) watch(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		u.note(r)
		return next.RoundTrip(r)
	})
}

func (u *rights) note(r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group := ""
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group, parts = parts[1], parts[3:]
	default:
		return // discovery, open to all
	}
	namespace := ""
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete", http.MethodGet: "get"}[r.Method]
	if verb == "get" && len(parts) == 1 {
		if verb = "list"; r.URL.Query().Get("watch") != "" {
			verb = "watch"
		}
	}
	what := parts[0]
	if len(parts) == 3 {
		what += "/" + parts[2]
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.used[verb+" "+group+"/"+what+" "+namespace] = true
}

// granted reads both roles of deploy/rbac.yaml into the same form. Cluster-wide rights have no namespace.
func granted(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for doc := range strings.SplitSeq(string(deploy.RBAC), "\n---\n") {
		var role rbacv1.ClusterRole // a Role has the same fields
		if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "ClusterRole" && role.Kind != "Role" {
			continue
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						out[verb+" "+group+"/"+resource+" "+role.Namespace] = true
					}
				}
			}
		}
	}
	return out
}

func TestTheAccountMayDoWhatIsUsedAndNothingMore(t *testing.T) {
	kube(t)
	rules := granted(t)
	needed := map[string]bool{}
	usedRights.mu.Lock()
	defer usedRights.mu.Unlock()
	for use := range usedRights.used {
		if rest, ok := strings.CutPrefix(use, "watch "); ok {
			needed["list "+rest] = true // API servers without streaming lists are listed first
		}
		words := strings.Split(use, " ")
		anywhere := words[0] + " " + words[1] + " "
		switch {
		case rules[use]:
			needed[use] = true
		case rules[anywhere]:
			needed[anywhere] = true
		default:
			t.Errorf("used, but not granted by deploy/rbac.yaml: %s", use)
		}
	}
	if flag.Lookup("test.run").Value.String() != "" {
		return // a part of the tests does not use everything
	}
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		if !needed[rule] {
			t.Errorf("granted by deploy/rbac.yaml, but not used: %s", rule)
		}
	}
}
