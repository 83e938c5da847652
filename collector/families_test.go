package collector

import (
	"os"
	"testing"
)

func TestNamesThatTheEndpointDoesNotServeDoNotLeaveTheDCGMProcess(t *testing.T) {
	for families, want := range map[string]string{"": "", "all": "", "dcgm": "", "pitcrew": "false"} {
		surround(t, t.TempDir(), "nats://127.0.0.1:1")
		t.Setenv(FamiliesEnv, families)
		t.Setenv("PITCREW_DCGM_NAMES", "")
		if err := Prepare(DCGM); err != nil {
			t.Fatal(err)
		}
		if got := os.Getenv("PITCREW_DCGM_NAMES"); got != want {
			t.Errorf("families %q: PITCREW_DCGM_NAMES is %q, want %q", families, got, want)
		}
	}
	t.Setenv(FamiliesEnv, "pitcrew")
	t.Setenv("PITCREW_DCGM_NAMES", "true") // a person's own setting wins
	if err := Prepare(DCGM); err != nil || os.Getenv("PITCREW_DCGM_NAMES") != "true" {
		t.Errorf("%v, PITCREW_DCGM_NAMES is %q", err, os.Getenv("PITCREW_DCGM_NAMES"))
	}
}
