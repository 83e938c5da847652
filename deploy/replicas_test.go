package deploy_test

import (
	"strings"
	"testing"
)

func TestTheStreamsHaveOneReplicaByDefaultAndThreeInTheHAValues(t *testing.T) {
	replicas := func(args ...string) string {
		t.Helper()
		out, said, err := helm(t, append([]string{"template", "pitcrew", chart, "-n", namespace}, args...)...)
		if err != nil {
			t.Fatalf("helm template: %v\n%s", err, said)
		}
		d := find(parse(t, out), "Deployment", "pitcrew-remediator")
		if d == nil {
			t.Fatal("no remediator")
		}
		_, after, found := strings.Cut(asJSON(t, d), `"name":"PITCREW_NATS_REPLICAS","value":"`)
		if !found {
			t.Fatalf("the remediator is not told how many replicas streams have")
		}
		return after[:strings.Index(after, `"`)]
	}
	if got := replicas(); got != "1" {
		t.Errorf("by default %s replicas, want 1", got)
	}
	if got := replicas("-f", chart+"/values-ha.yaml", "--set", "nats.url=nats://nats.nats.svc:4222"); got != "3" {
		t.Errorf("with the HA values %s replicas, want 3", got)
	}
	for _, args := range [][]string{{"--set", "nats.replicas=3"}, {"-f", chart + "/values-ha.yaml", "--set", "bus.enabled=true"}, {"--set", "nats.replicas=2"}} {
		_, said, err := helm(t, append([]string{"template", "pitcrew", chart, "-n", namespace}, args...)...)
		if err == nil || !strings.Contains(said, "replicas") {
			t.Errorf("%v: %v, %s; want a refusal that names replicas", args, err, said)
		}
	}
}
