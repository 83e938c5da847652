package cluster_test

import (
	"net/http"
	"strings"
	"sync"
)

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
