package policy

import (
	"encoding/json"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/invopop/jsonschema"
)

// Duration is a length of time as people write it: 30s, 5m, 2h.
type Duration time.Duration

// ParseDuration reads a duration that is not negative and not without unit.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || (d == 0 && strings.Trim(s, "0") == "") {
		return 0, fmt.Errorf("%q is not a duration; write it like 30s, 5m or 2h", s)
	}
	return Duration(d), nil
}

// String writes it without trailing zero units: 2h, not 2h0m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes it as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads it as ParseDuration does.
func (d *Duration) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDuration(string(b))
	return err
}

// JSONSchema describes the spelling.
func (Duration) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`}
}

// Share bounds a number of nodes by count, by percent, or by both, and in addition per rack, pool or job; zero means that one is not given.
type Share struct {
	Count   int     `json:"count,omitempty" jsonschema:"minimum=1" jsonschema_description:"At most this many."`
	Percent float64 `json:"percent,omitempty" jsonschema:"exclusiveMinimum=0,maximum=100" jsonschema_description:"At most this share of the nodes the policy applies to, rounded up, at least 1. With count, the smaller of the two applies."`
	// PerRack counts nodes with the same RackOf, PerPool those with the same PoolOf, PerJob those that an incident of the same job cordoned.
	// A node that names no rack or pool is not limited by it.
	PerRack int `json:"perRack,omitempty" jsonschema:"minimum=1" jsonschema_description:"At most this many in one rack, by pitcrew.dev/rack or the provider's label for a rack or leaf switch."`
	PerPool int `json:"perPool,omitempty" jsonschema:"minimum=1" jsonschema_description:"At most this many in one pool, by pitcrew.dev/pool or the cloud's own pool label."`
	PerJob  int `json:"perJob,omitempty" jsonschema:"minimum=1" jsonschema_description:"At most this many because of one job."`
}

func (s Share) perDomain() bool { return s.PerRack != 0 || s.PerPool != 0 || s.PerJob != 0 }

// Of is the bound for a fleet of total nodes: the smaller of the two, rounded up, at least 1.
func (s Share) Of(total int) int {
	limit := math.MaxInt
	if s.Count > 0 {
		limit = s.Count
	}
	if s.Percent > 0 {
		// The product of two decimals may lie a hair above a whole number; that hair must not buy another node.
		limit = min(limit, int(math.Ceil(s.Percent*float64(total)/100-1e-9)))
	}
	if s.Count <= 0 && s.Percent <= 0 {
		return 1
	}
	return max(limit, 1)
}

// String shows what was given.
func (s Share) String() string {
	var parts []string
	if s.Count > 0 {
		parts = append(parts, strconv.Itoa(s.Count))
	}
	if s.Percent > 0 {
		parts = append(parts, strconv.FormatFloat(s.Percent, 'g', -1, 64)+"%")
	}
	out := strings.Join(parts, " or ")
	for _, d := range []struct {
		n    int
		what string
	}{{s.PerRack, "rack"}, {s.PerPool, "pool"}, {s.PerJob, "job"}} {
		if d.n > 0 {
			out += fmt.Sprintf(", %d per %s", d.n, d.what)
		}
	}
	return out
}

// Signals is one signal or a list of them; globs allowed.
type Signals []string

// Match gives the first pattern that takes the signal.
func (s Signals) Match(signal string) (pattern string, ok bool) {
	for _, p := range s {
		if globMatch(p, signal) {
			return p, true
		}
	}
	return "", false
}

// JSONSchema allows a single string for a list of one.
func (Signals) JSONSchema() *jsonschema.Schema {
	one := &jsonschema.Schema{Type: "string", Pattern: `^(\*|[^/ ]+/[^/ ]+)$`}
	min := uint64(1)
	return &jsonschema.Schema{OneOf: []*jsonschema.Schema{one, {Type: "array", Items: one, MinItems: &min}}}
}

// UnmarshalJSON reads both spellings, as the YAML parser does.
func (s *Signals) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*s = Signals{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(s))
}

// globMatch is path.Match, save that a lone star takes everything.
func globMatch(pattern, s string) bool {
	if pattern == "*" {
		return true
	}
	ok, err := path.Match(pattern, s)
	return ok && err == nil
}

func isGlob(s string) bool { return strings.ContainsAny(s, `*?[\`) }
