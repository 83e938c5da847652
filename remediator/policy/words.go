package policy

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/invopop/jsonschema"
)

// Mode says how far a policy goes.
type Mode string

// Modes in rising order of what they may do.
const (
	Off     Mode = "off"
	Observe Mode = "observe"
	Approve Mode = "approve"
	Enforce Mode = "enforce"
)

// Default says what happens to an event that no rule takes.
type Default string

// What can happen to an event that no rule takes.
const (
	DefaultNotify Default = "notify"
	DefaultIgnore Default = "ignore"
)

// Placement says where a job may be restarted.
type Placement string

// The placements of restart-job.
const (
	Equivalent Placement = "equivalent"
	SameNode   Placement = "same-node"
	Any        Placement = "any"
)

// Verb is an action of a step.
type Verb string

// The verbs. Uncordon is not one a policy can ask for: Pitcrew undoes only what it did.
const (
	Cordon     Verb = "cordon"
	Checkpoint Verb = "checkpoint"
	RestartJob Verb = "restart-job"
	Notify     Verb = "notify"
	RebootNode Verb = "reboot-node"
	Uncordon   Verb = "uncordon"
)

// VerbInfo is what is known of an action.
type VerbInfo struct {
	Verb       Verb
	About      string
	Options    []string // fields of `with` that it takes
	Disruptive bool     // counts against the action budget
	// Recommendation: nothing in Pitcrew carries it out yet; the incident records it for a person.
	Recommendation bool
	// rank is its place in a sane order of steps; notify has none.
	rank int
}

var verbs = []VerbInfo{
	{Verb: Cordon, About: "Taint the node `pitcrew.dev/quarantine` and mark it unschedulable.", Disruptive: true, rank: 1},
	{Verb: Checkpoint, About: "Save the job at one step on all ranks; where a rank is dead or held, the newest valid checkpoint serves.", rank: 2},
	{Verb: RestartJob, About: "Bring the gang back, the failed member placed as `with` says.", Options: []string{"placement", "maxTierLoss", "maxPerJob", "fastReplace"}, Disruptive: true, rank: 3},
	{Verb: RebootNode, About: "Reboot the node. Needs `approval: required`; where nothing can carry it out it is recorded as a recommendation.", Disruptive: true, Recommendation: true, rank: 4},
	{Verb: Notify, About: "Send the incident to Alertmanager or a webhook."},
}

// Verbs lists the actions a policy can ask for.
func Verbs() []VerbInfo { return slices.Clone(verbs) }

// Info is what is known of a verb.
func (v Verb) Info() (VerbInfo, bool) {
	for _, i := range verbs {
		if i.Verb == v {
			return i, true
		}
	}
	return VerbInfo{}, false
}

// Disruptive reports whether the verb counts against the action budget.
func (v Verb) Disruptive() bool { i, _ := v.Info(); return i.Disruptive }

// SignalKind is one kind of fault and the names it can have.
type SignalKind struct {
	Kind  string
	Names []string // closed list; nil with Code or Open
	Code  bool     // a number follows
	Open  bool     // any name follows
	About string
	// Information: a finding of this name never acts, whatever a rule says.
	Information bool
}

var signalKinds = []SignalKind{
	{Kind: "xid", Code: true, About: "NVIDIA Xid, by number"},
	{Kind: "sxid", Code: true, About: "NVSwitch SXid, by number"},
	{Kind: "gpu", Names: []string{"lost", "ecc", "row-remap", "thermal", "nvlink", "pcie", "init", "gsp", "unhealthy"}, About: "a GPU that is gone or cannot be used, or a health domain of it"},
	{Kind: "pcie", Names: []string{"aer"}, Information: true, About: "a PCIe port or link that reports errors; information, never acts"},
	{Kind: "nic", Names: []string{"mlx5"}, Information: true, About: "a network adapter that complains; information, never acts"},
	{Kind: "nvlink", Names: []string{"down", "crc", "replay", "recovery", "recovery-failed", "ecc"}, About: "NVLinks of a GPU or NVSwitch that went down, or whose errors are beyond the table's limits"},
	{Kind: "nvswitch", Names: []string{"lost", "unhealthy", "reset-required"}, About: "an NVSwitch that is gone, that DCGM's health watch calls failed, or that wants a reset"},
	{Kind: "fabric", Names: []string{"port-down", "flap", "unstable", "symbol-errors", "recovery", "integrity", "receive-errors", "discards", "slow-link"}, About: "a port of InfiniBand or RoCE that left ACTIVE, or did so between two looks; whose errors are beyond the table's limits; or that runs slower than it did"},
	{Kind: "isolation", Names: []string{"foreign-process"}, Information: true, About: "a process on a GPU that its pod was not given; information, never acts"},
	{Kind: "rank", Names: []string{"dead", "hung", "stalled", "straggler", "imbalance", "absent"}, About: "a worker process of a training job; the last three are a gateway's comparison with its peers"},
	{Kind: "job", Names: []string{"slowdown"}, Information: true, About: "most ranks of a job became slow together; information, never acts"},
	{Kind: "node", Names: []string{"lost"}, About: "a node that two witnesses miss"},
	{Kind: "agent", Names: []string{"lost", "lines-lost"}, Information: true, About: "Pitcrew's own agent; information, never acts"},
	{Kind: "anomaly", Open: true, About: "statistical findings: thermal-throttle, launch-latency and degraded are borne out by several signals; those of one signal (docs/detection.md) are information"},
	{Kind: "train", Open: true, About: "findings about training signals"},
	{Kind: "k8s", Open: true, About: "conditions and events of Kubernetes"},
	{Kind: "rule", Open: true, About: "Prometheus rules, by alert name"},
}

// SignalKinds lists what a rule can match.
func SignalKinds() []SignalKind { return slices.Clone(signalKinds) }

func signalKind(kind string) (SignalKind, bool) {
	i := slices.IndexFunc(signalKinds, func(k SignalKind) bool { return k.Kind == kind })
	if i < 0 {
		return SignalKind{}, false
	}
	return signalKinds[i], true
}

// informational reports whether a signal never acts.
func informational(signal string) bool {
	kind, _, _ := strings.Cut(signal, "/")
	k, ok := signalKind(kind)
	return ok && k.Information
}

func knownSignals() (all []string) {
	for _, k := range signalKinds {
		for _, n := range k.Names {
			all = append(all, k.Kind+"/"+n)
		}
	}
	return all
}

// checkSignal refuses a pattern that no event can have.
func checkSignal(s string) error {
	if s == "*" {
		return nil
	}
	if _, err := path.Match(s, ""); err != nil {
		return fmt.Errorf("signal %q: bad glob", s)
	}
	kind, name, ok := strings.Cut(s, "/")
	if !ok || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("signal %q: write it as kind/name, such as xid/79 or gpu/lost%s", s, suggest(s, knownSignals()))
	}
	var fit []SignalKind
	for _, k := range signalKinds {
		if globMatch(kind, k.Kind) {
			fit = append(fit, k)
		}
	}
	if len(fit) == 0 {
		kinds := make([]string, len(signalKinds))
		for i, k := range signalKinds {
			kinds[i] = k.Kind
		}
		if hint := suggest(s, knownSignals()); hint != "" {
			return fmt.Errorf("unknown signal %q%s", s, hint)
		}
		return fmt.Errorf("unknown signal %q%s; kinds are %s", s, suggest(kind, kinds), strings.Join(kinds, ", "))
	}
	for _, k := range fit {
		if k.takes(name) {
			return nil
		}
	}
	if len(fit) == 1 && fit[0].Code {
		return fmt.Errorf("unknown signal %q: %s takes a number or a glob, such as %s/79", s, kind, kind)
	}
	hint := suggest(s, knownSignals())
	if hint == "" && len(fit) == 1 {
		hint = "; one of " + kind + "/" + strings.Join(fit[0].Names, ", "+kind+"/")
	}
	return fmt.Errorf("unknown signal %q%s", s, hint)
}

func (k SignalKind) takes(name string) bool {
	switch {
	case k.Open:
		return true
	case k.Code:
		return isGlob(name) || (name != "" && strings.Trim(name, "0123456789") == "")
	}
	return slices.ContainsFunc(k.Names, func(n string) bool { return globMatch(name, n) })
}

// What verify can ask for.
const (
	Stepping = "train/stepping" // every rank finished a step past the checkpoint
	Pace     = "train/pace"     // and steps are as short as before the finding
)

var verifySignals = []string{Stepping, Pace}

// oneOf refuses a word that is not in the list, with a suggestion where one is near.
func oneOf(what, got string, allowed []string) error {
	if slices.Contains(allowed, got) {
		return nil
	}
	if hint := suggest(got, allowed); hint != "" {
		return fmt.Errorf("unknown %s %q%s", what, got, hint)
	}
	if got == "" {
		return errors.New("missing; one of " + strings.Join(allowed, ", "))
	}
	return fmt.Errorf("unknown %s %q; one of %s", what, got, strings.Join(allowed, ", "))
}

// suggest says "; did you mean X?" for the nearest word, if it is near enough to be a slip of the hand.
func suggest(got string, words []string) string {
	best, at := max(1, len(got)/3)+1, ""
	for _, w := range words {
		if d := editDistance(strings.ToLower(got), w); d < best {
			best, at = d, w
		}
	}
	if at == "" || len(got) < 2 {
		return ""
	}
	return "; did you mean " + at + "?"
}

// editDistance counts insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	var d [65][65]int
	for i := range len(a) + 1 {
		for j := range len(b) + 1 {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				d[i][j] = d[i-1][j-1]
			default:
				d[i][j] = 1 + min(d[i-1][j-1], d[i-1][j], d[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}

func words[T ~string](in ...T) []string {
	out := make([]string, len(in))
	for i, w := range in {
		out[i] = string(w)
	}
	return out
}

var (
	modeWords      = words(Off, Observe, Approve, Enforce)
	defaultWords   = words(DefaultNotify, DefaultIgnore)
	placementWords = words(Equivalent, SameNode, Any)
	verbWords      = func() (out []string) {
		for _, v := range verbs {
			out = append(out, string(v.Verb))
		}
		return out
	}()
)

func enumSchema(ws []string, def any) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string", Default: def}
	for _, w := range ws {
		s.Enum = append(s.Enum, w)
	}
	return s
}

// JSONSchema lists the modes.
func (Mode) JSONSchema() *jsonschema.Schema { return enumSchema(modeWords, Observe) }

// JSONSchema lists the defaults.
func (Default) JSONSchema() *jsonschema.Schema { return enumSchema(defaultWords, DefaultNotify) }

// JSONSchema lists the placements.
func (Placement) JSONSchema() *jsonschema.Schema { return enumSchema(placementWords, Equivalent) }

// JSONSchema lists the verbs.
func (Verb) JSONSchema() *jsonschema.Schema { return enumSchema(verbWords, nil) }
