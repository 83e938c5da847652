package collector

import (
	"regexp"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/receivers/dcgmreceiver"
)

var defaulted = regexp.MustCompile(`^\$\{env:[A-Z_]+:-(.*)\}$`)

// text is a value of a configuration where no variable is set.
func text(v any) string {
	s, _ := v.(string)
	if m := defaulted.FindStringSubmatch(s); m != nil {
		return m[1]
	}
	return s
}

func TestNoGPUsSeriesExpiresBetweenTwoReadings(t *testing.T) {
	expiry, err := time.ParseDuration(text(tree(t, Agent)["exporters"].(map[string]any)["prometheus"].(map[string]any)["metric_expiration"]))
	if err != nil {
		t.Fatal(err)
	}
	most, err := time.ParseDuration(text(tree(t, DCGM)["receivers"].(map[string]any)["dcgm"].(map[string]any)["max_interval"]))
	if err != nil {
		t.Fatal(err)
	}
	if most != dcgmreceiver.NewDefaultConfig().MaxInterval || 2*most > expiry {
		t.Errorf("fields are read every %v at the least, and a series ends after %v: one late reading would be a gap", most, expiry)
	}
}
