package detector

import (
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// kernelFault is what a kind of kernel line without a code means.
type kernelFault struct {
	cause    event.Cause
	severity event.Severity // empty: as the receiver's table says
	most     event.Severity // empty: no bound on what that says
	advice   string         // where the receiver knows none
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
	"lines_lost": {
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

// kernelSignal judges a line without a code. Such lines come in numbers: one finding stands for all of a kind and case.
func (e *Engine) kernelSignal(s kernelFault, k Kernel) {
	severity := s.severity
	def(&severity, k.Severity)
	switch {
	case severity == event.Info:
		e.counts.Trifles++
		return
	case !severity.Valid():
		severity = event.Warning
	case s.most != "" && severity.AtLeast(s.most):
		severity = s.most
	}
	if k.History {
		e.counts.History++
	}
	def(&k.Advice, s.advice)
	t := event.Target{GPU: k.GPU, PCI: k.PCI}
	if s.nodeWide {
		t = event.Target{}
	}
	key := s.cause.Signal() + " " + about(t)
	if s.byCase {
		key += " " + k.Name
	}
	ev := event.Evidence{Signal: "kernel log", Baseline: "table", Raw: k.Raw}
	if s.nodeWide {
		ev.Value, ev.Unit = num(float64(max(k.Count, 1))), "{line}"
	}
	e.begin(onset{
		key: key, target: t, cause: s.cause, severity: severity, advice: k.Advice, at: k.Time, source: "xid", id: append(lineID(k), k.Kind),
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
