package rules

import (
	"fmt"
	"slices"
	"strings"
)

// Severity says how bad a code is when it is the cause.
type Severity string

// Severities, from harmless to the GPU or node being unusable.
const (
	Info     Severity = "info"
	Warning  Severity = "warning"
	Critical Severity = "critical"
	Fatal    Severity = "fatal"
)

var severities = []Severity{Info, Warning, Critical, Fatal}

// Rank orders severities: 0 for info to 3 for fatal, -1 for a word that is none.
func (s Severity) Rank() int { return slices.Index(severities, s) }

// Worse reports whether s is strictly worse than o.
func (s Severity) Worse(o Severity) bool { return s.Rank() > o.Rank() }

// Advice is the bucket of action that a code calls for.
type Advice string

// The buckets.
const (
	None           Advice = "none"
	RestartApp     Advice = "restart-app"
	ResetGPU       Advice = "reset-gpu"
	RebootNode     Advice = "reboot-node"
	DrainAndRMA    Advice = "drain-and-rma"
	CheckFabric    Advice = "check-nvlink/fabric"
	ContactSupport Advice = "contact-support"
)

var advices = []Advice{None, RestartApp, ResetGPU, RebootNode, DrainAndRMA, CheckFabric, ContactSupport}

// AppCaused says how often the application, not the hardware, is to blame.
type AppCaused string

// Words of AppCaused.
const (
	AppNo        AppCaused = "no"
	AppSometimes AppCaused = "sometimes"
	AppOften     AppCaused = "often"
	AppUsually   AppCaused = "usually"
	AppUnknown   AppCaused = "unknown"
)

var appCauses = []AppCaused{AppNo, AppSometimes, AppOften, AppUsually, AppUnknown}

// Role is the part a code plays in a burst of lines.
type Role string

// Roles: a cause stands for itself, an echo follows from another code, a
// verdict carries the driver's own recovery action, a clear ends a condition.
const (
	Cause   Role = "cause"
	Echo    Role = "echo"
	Verdict Role = "verdict"
	Clear   Role = "clear"
)

var roles = []Role{Cause, Echo, Verdict, Clear}

// Fatality is how a table words the danger of an NVLink or NVSwitch code.
type Fatality string

// Fatalities. ByLine and PotentiallyFatal leave the word to the kernel line.
const (
	AlwaysFatal      Fatality = "always-fatal"
	PotentiallyFatal Fatality = "potentially-fatal"
	ByLine           Fatality = "by-line"
	NonFatal         Fatality = "non-fatal"
	LinkFatal        Fatality = "link-fatal"
	RuleFatal        Fatality = "fatal"
)

var (
	sxidFatalities   = []Fatality{AlwaysFatal, PotentiallyFatal, ByLine, NonFatal}
	nvlinkFatalities = []Fatality{RuleFatal, LinkFatal, NonFatal}
)

// Classes of Xid codes.
var classes = []string{
	"app", "c2c", "display", "firmware", "hardware", "memory", "nvlink", "pcie", "power", "security", "software", "thermal",
}

// Resolutions of NVLink 5 sub-codes.
const (
	ResolveIgnore  = "IGNORE"
	ResolveReset   = "RESET_GPU"
	ResolveVerdict = "XID_154_EVAL"
)

var resolutions = []string{ResolveIgnore, ResolveReset, ResolveVerdict}

// word sets *to to v if v is one of the allowed words.
func word[T ~string](to *T, v string, allowed []T) error {
	if !slices.Contains(allowed, T(v)) {
		all := make([]string, len(allowed))
		for i, a := range allowed {
			all[i] = string(a)
		}
		return fmt.Errorf("%q is none of %s", v, strings.Join(all, ", "))
	}
	*to = T(v)
	return nil
}
