package catalog

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/alertmanager/config"
	"github.com/prometheus/alertmanager/inhibit"
	"github.com/prometheus/alertmanager/provider/mem"
	"github.com/prometheus/alertmanager/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"

	"github.com/pitcrew/pitcrew/rules"
)

// inhibitor is Alertmanager's own, with the generated rules and some alerts that fire.
func inhibitor(t *testing.T, firing ...model.LabelSet) *inhibit.Inhibitor {
	t.Helper()
	raw, err := os.ReadFile("../" + InhibitFile)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load("route: {receiver: x}\nreceivers: [{name: x}]\n" + string(raw))
	if err != nil {
		t.Fatalf("Alertmanager refuses the file: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	log, reg := promslog.NewNopLogger(), prometheus.NewRegistry()
	marker := types.NewMarker(reg)
	alerts, err := mem.NewAlerts(ctx, marker, time.Hour, 0, nil, log, reg, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, l := range firing {
		if err := alerts.Put(ctx, &types.Alert{Alert: model.Alert{Labels: l, StartsAt: now, EndsAt: now.Add(time.Hour)}, UpdatedAt: now}); err != nil {
			t.Fatal(err)
		}
	}
	in := inhibit.NewInhibitor(alerts, c.InhibitRules, marker, log)
	done := make(chan struct{})
	go func() { defer close(done); in.Run() }()
	t.Cleanup(func() { in.Stop(); <-done; cancel(); alerts.Close() })
	in.WaitForLoading()
	return in
}

// of is the alert of a record on a node, with its severity.
func of(t *testing.T, all []Record, name, node string) model.LabelSet {
	t.Helper()
	for i := range all {
		if r := &all[i]; r.Alert == name {
			return model.LabelSet{"alertname": model.LabelValue(name), "severity": model.LabelValue(r.Severity), "cluster": "c1", "node": model.LabelValue(node)}
		}
	}
	t.Fatalf("no alert %s", name)
	return nil
}

func incidentOf(signal, severity, node string) model.LabelSet {
	return model.LabelSet{"alertname": "PitcrewIncident", "signal": model.LabelValue(signal), "severity": model.LabelValue(severity), "cluster": "c1", "node": model.LabelValue(node)}
}

func TestAlertmanagerMutesWhatACauseExplainsOnItsNodeAlone(t *testing.T) {
	all, checked := shippedRecords(t), 0
	byName := map[string]bool{}
	for _, r := range all {
		byName[r.Alert] = true
	}
	for _, r := range all {
		for _, source := range r.ExplainedBy {
			checked++
			target := of(t, all, r.Alert, "n7")
			cause := func(node string) model.LabelSet {
				if byName[source] {
					return of(t, all, source, node)
				}
				return incidentOf(source, "fatal", node)
			}
			if !inhibitor(t, cause("n7")).Mutes(t.Context(), target) {
				t.Errorf("%s does not mute %s", source, r.Alert)
			}
			nowhere, nobody := cause("n7"), target.Clone()
			delete(nowhere, "node")
			delete(nobody, "node")
			if inhibitor(t, nowhere).Mutes(t.Context(), nobody) { // both may be of any node
				t.Errorf("%s without a node mutes %s without a node", source, r.Alert)
			}
			if inhibitor(t, cause("n8")).Mutes(t.Context(), target) {
				t.Errorf("%s of another node mutes %s", source, r.Alert)
			}
			elsewhere := cause("n7")
			elsewhere["cluster"] = "c2"
			if inhibitor(t, elsewhere).Mutes(t.Context(), target) {
				t.Errorf("%s of another cluster mutes %s", source, r.Alert)
			}
			if !byName[source] && r.Severity == "critical" && inhibitor(t, incidentOf(source, "warning", "n7")).Mutes(t.Context(), target) {
				t.Errorf("a warning of %s mutes %s, which is critical", source, r.Alert)
			}
		}
	}
	if checked < 15 {
		t.Errorf("only %d pairs were checked", checked)
	}
}

func TestNoIncidentOfOneCardMutesAnAlertOfOthers(t *testing.T) {
	all := shippedRecords(t)
	in := inhibitor(t, incidentOf("xid/79", "fatal", "n7"), incidentOf("gpu/lost", "fatal", "n7"))
	muted := 0
	for i := range all {
		r := &all[i]
		if !in.Mutes(t.Context(), of(t, all, r.Alert, "n7")) {
			continue
		}
		muted++
		for _, l := range deviceLabels {
			if r.has(l) {
				t.Errorf("%s has the label %s and is muted by the loss of any GPU of its node", r.Alert, l)
			}
		}
	}
	if muted == 0 {
		t.Error("nothing is muted")
	}
}

func TestEachSourceOfAnInhibitRuleIsAnAlertOrASignalThatExists(t *testing.T) {
	tables, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, x := range tables.XIDs() {
		known["xid/"+strconv.Itoa(x.Code)] = true
	}
	contracts, err := os.ReadFile(root + "/docs/contracts.md")
	if err != nil {
		t.Fatal(err)
	}
	conditions, err := os.ReadFile(root + "/docs/kubernetes-signals.md")
	if err != nil {
		t.Fatal(err)
	}
	all := shippedRecords(t)
	for _, r := range all {
		known[r.Alert] = true
	}
	for _, r := range all {
		for _, s := range r.ExplainedBy {
			bare, ofNode := strings.CutPrefix(s, "k8s/")
			if !known[s] && !strings.Contains(string(contracts), "`"+s+"`") && !(ofNode && strings.Contains(string(conditions), "`"+bare+"`")) {
				t.Errorf("%s:%d: %s: explained_by: nothing reports %s", r.File, r.Line, r.Alert, s)
			}
		}
	}
}

func TestAnInhibitRuleThatCouldHideAnotherFaultIsRefused(t *testing.T) {
	explained := func(by string) string {
		return strings.Replace(sound, "  summary: 's'\n", "  summary: 's'\n  explained_by: ["+by+"]\n", 1)
	}
	node := strings.NewReplacer("'x':", `'x{node="n7"}':`)
	device := strings.NewReplacer("'x':", `'x{hw_id="GPU-1",node="n7"}':`)
	second := func(text, alert, more string) string {
		return strings.NewReplacer("GPU-01", "GPU-02", "GPUMissing", alert, "  summary: 's'\n", "  summary: 's'\n"+more).Replace(text[strings.Index(text, "- id"):])
	}
	for name, c := range map[string]struct{ text, want string }{
		"sound":                       {node.Replace(explained("xid/79")), ""},
		"a name that is nothing":      {node.Replace(explained("GPUMising")), `"GPUMising" is neither an alert nor a signal`},
		"an alert without a node":     {explained("xid/79"), "the alert names no node"},
		"a device by another device":  {device.Replace(explained("xid/79")), "xid/79 concerns one device"},
		"a device by the whole node":  {device.Replace(explained("node/lost")), ""},
		"itself":                      {node.Replace(explained("GPUMissing")), "leads back to itself"},
		"a circle":                    {node.Replace(explained("Other")) + node.Replace(second(sound, "Other", "  explained_by: [GPUMissing]\n")), "leads back to itself"},
		"a cause that is less severe": {node.Replace(explained("Other")) + strings.Replace(node.Replace(second(sound, "Other", "")), "critical", "info", 1), "Other is less severe"},
		"a cause without a node":      {node.Replace(explained("Other")) + second(sound, "Other", ""), "Other names no node"},
	} {
		_, err := Load(fstest.MapFS{"gpu.yaml": {Data: []byte(c.text)}})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
