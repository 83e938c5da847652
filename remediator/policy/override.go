package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/goccy/go-yaml"
)

// WithMode gives copies of the policies in another mode. Those that are off stay off: an override of all must not wake what an
// operator put to sleep.
func WithMode(ps []Policy, m Mode) []Policy {
	return change(ps, func(s *Spec) {
		if s.Mode != Off {
			s.Mode = m
		}
	})
}

// WithGuards gives copies of the policies with their guards changed by f.
func WithGuards(ps []Policy, f func(*Guards)) []Policy {
	return change(ps, func(s *Spec) { f(&s.Guards) })
}

func change(ps []Policy, f func(*Spec)) []Policy {
	out := slices.Clone(ps)
	for i := range out {
		out[i].Spec.Guards.Blackout = slices.Clone(out[i].Spec.Guards.Blackout)
		f(&out[i].Spec)
	}
	return out
}

// Marshal writes policies as YAML that Parse reads back to the same.
func Marshal(ps []Policy) ([]byte, error) {
	var out bytes.Buffer
	for i, p := range ps {
		j, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", p, err)
		}
		y, err := yaml.JSONToYAML(j)
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", p, err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(y)
	}
	return out.Bytes(), nil
}
