package detector

import (
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/event"
)

// kernelFault is what a kind of kernel line without a code means.
type kernelFault struct {
	cause    event.Cause
	severity event.Severity // empty: as the table says
	most     event.Severity // empty: no bound on what that says
	advice   string         // if the table has none
	byCase   bool           // the cases of the kind are findings of their own
	nodeWide bool
	quiet    time.Duration // so long without another line ends it; 0: it lasts until the next boot
}

// quietLine ends what is known only by its lines: nothing in the log says that it is well again.
const quietLine = 10 * time.Minute

// kernelSignals are the kinds, by the end of their EventName. A PCIe port or a network adapter that complains is a second witness
// at most, so it only warns: what it does to a GPU or a rank is said by those.
var kernelSignals = map[string]kernelFault{
	"gpu_init": {cause: event.Cause{Kind: "gpu", Name: "init"}, severity: event.Fatal, advice: "reset-gpu"},
	"gsp":      {cause: event.Cause{Kind: "gpu", Name: "gsp"}, advice: "reset-gpu"},
	"aer":      {cause: event.Cause{Kind: "pcie", Name: "aer"}, most: event.Warning, byCase: true, quiet: quietLine},
	"mlx5":     {cause: event.Cause{Kind: "nic", Name: "mlx5"}, most: event.Warning, byCase: true, quiet: quietLine},
	linesLost: {
		cause: event.Cause{Kind: "agent", Name: "lines-lost"}, severity: event.Warning, nodeWide: true, quiet: quietLine,
	},
}

var quietAfter = func() map[string]time.Duration {
	m := map[string]time.Duration{}
	for _, s := range kernelSignals {
		if s.quiet > 0 {
			m[s.cause.Signal()] = s.quiet
		}
	}
	m["isolation/"+foreign] = unseenAfter
	m["fabric/"+fabricFlap] = quietLine
	return m
}()

// kernelSignal turns a line without a code into a finding. Such lines come in numbers: one finding stands for all of a kind and case.
func (e *Engine) kernelSignal(s kernelFault, k Kernel, v verdict.Verdict) {
	severity, advice := s.severity, string(v.Advice)
	def(&severity, event.Severity(v.Severity))
	switch {
	case severity == event.Info:
		e.counts.Trifles++
		return
	case !severity.Valid():
		severity = event.Warning
	case s.most != "" && severity.AtLeast(s.most):
		severity = s.most
	}
	def(&advice, s.advice)
	t := event.Target{GPU: k.GPU, PCI: k.PCI}
	if s.nodeWide {
		t = event.Target{}
	}
	key := s.cause.Signal() + " " + about(t)
	if s.byCase {
		key += " " + k.Case
	}
	ev := event.Evidence{Signal: "kernel log", Baseline: "table", Raw: k.Raw}
	if s.nodeWide {
		ev.Value, ev.Unit = num(float64(k.Count)), "{line}"
	}
	e.begin(onset{
		key: key, target: t, cause: s.cause, severity: severity, advice: advice, at: k.Time, source: k.component, id: append(lineID(k), k.Kind),
		silent: k.History, count: k.Count, evidence: ev,
	})
}

// fallsQuiet ends an open finding whose lines have stopped, and reports whether it did.
func (e *Engine) fallsQuiet(key string, o *finding.Open) bool {
	quiet, ok := quietAfter[o.Event.Data.Cause.Signal()]
	if !ok || e.now.Sub(o.Seen) < quiet {
		return false
	}
	return e.end(key, event.Evidence{Signal: o.Event.Data.Evidence.Signal, Baseline: "table", WindowS: quiet.Seconds(), Raw: "nothing more of it"})
}
