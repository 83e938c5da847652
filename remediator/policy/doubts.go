package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pitcrew/pitcrew/rules"
)

// Doubts lists signals of rules that no table of this version has. Most are typing mistakes. They are not faults, since newer drivers
// add codes, and so may an operator's own tables.
func Doubts(ps []Policy) (out []string) {
	tables, err := rules.Builtin()
	if err != nil {
		return []string{err.Error()}
	}
	known := map[string][]string{}
	for _, x := range tables.XIDs() {
		known["xid"] = append(known["xid"], strconv.Itoa(x.Code))
	}
	for _, x := range tables.SXids() {
		known["sxid"] = append(known["sxid"], strconv.Itoa(x.Code))
	}
	for _, p := range ps {
		for _, r := range p.Spec.Rules {
			for _, s := range r.When.Signal {
				kind, name, _ := strings.Cut(s, "/")
				names := known[kind]
				if names == nil || strings.ContainsAny(name, `*?[\\`) || slices.Contains(names, name) {
					continue
				}
				out = append(out, fmt.Sprintf("%s: policy %s: rule %s: signal %q: this version reports no such %s; nearest: %s", p.File, p.Metadata.Name, r.Name, s,
					kind, kind+"/"+strings.Join(nearest(name, names), ", "+kind+"/")))
			}
		}
	}
	return out
}

// nearest gives up to three names that share the most with one: the longest common beginning, then the nearest length.
func nearest(name string, names []string) []string {
	common := func(n string) (i int) {
		for i < min(len(n), len(name)) && n[i] == name[i] {
			i++
		}
		return i
	}
	names = slices.Clone(names)
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(common(b), common(a)), cmp.Compare(abs(len(a)-len(name)), abs(len(b)-len(name))))
	})
	return names[:min(3, len(names))]
}

func abs(n int) int { return max(n, -n) }
