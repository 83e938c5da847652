package event

import "testing"

func TestOnlyAGatewaysSourceNamesAGateway(t *testing.T) {
	for source, want := range map[string]string{
		GatewaySource("c", "gw-0", "detector"): "gw-0", Source("c", "n1", "detector"): "", "": "", "//c/gateway/gw-0": "",
		"x//c/gateway/gw-0/d": "", "//c/gateway/a/b/detector": "", "//c/node/gateway/x/detector": "",
	} {
		if got := GatewayOf(source); got != want {
			t.Errorf("%q names gateway %q, want %q", source, got, want)
		}
	}
}

func TestAGatewayComparesRanksAndSaysNothingElse(t *testing.T) {
	straggler := func() Event {
		return Event{ID: "1", Type: Anomaly, Data: Data{Cause: Cause{Kind: "rank", Name: "straggler"}, Severity: Warning}}
	}
	if err := MayGateway(straggler()); err != nil {
		t.Error(err)
	}
	desync := straggler()
	if desync.Data.Cause = (Cause{Kind: "torch", Name: "desync"}); MayGateway(desync) != nil {
		t.Error("who did not enter a collective is not a gateway's to say")
	}
	for what, change := range map[string]func(*Event){
		"a fault":            func(e *Event) { e.Type = Fault },
		"an incident's step": func(e *Event) { e.Type = Incident },
		"a fatal finding":    func(e *Event) { e.Data.Severity = Fatal },
		"a kernel code":      func(e *Event) { e.Data.Cause = Cause{Kind: "xid", Code: "79"} },
		"a code under it":    func(e *Event) { e.Data.Cause.Code = "straggler" },
		"a lost GPU":         func(e *Event) { e.Data.Cause = Cause{Kind: "gpu", Name: "lost"} },
		"a dead rank":        func(e *Event) { e.Data.Cause.Name = "dead" },
		"advice":             func(e *Event) { e.Data.Advice = "reboot-node" },
	} {
		e := straggler()
		if change(&e); MayGateway(e) == nil {
			t.Errorf("%s is let through", what)
		}
	}
}

func TestAGatewayMaySayWhatAnAlertRuleFound(t *testing.T) {
	e := Event{ID: "1", Type: Anomaly, Data: Data{Cause: Cause{Kind: "rule", Name: "GPUHot"}, Severity: Warning}}
	if err := MayGateway(e); err != nil {
		t.Error(err)
	}
	e.Data.Severity = Fatal
	if MayGateway(e) == nil {
		t.Error("a rule's finding may be fatal")
	}
}
