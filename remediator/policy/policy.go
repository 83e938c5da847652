// Package policy is the language in which an operator says what Pitcrew may do: its types, its one strict parser, its JSON Schema
// and the judgement of an event by a set of policies.
//
// It promises that a file which loads means what it says (no unknown field, no misspelt word, no rule that can never match, no
// order of steps that would put a job back on the node it fled), that every error names file, line and column, and that a
// judgement carries its whole path: each policy, each rule and why it did not match. It is pure: it reads no clock and no cluster
// and changes nothing. Guards are named here and judged in package guard.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/pitcrew/pitcrew/event"
)

// What the head of a policy must say.
const (
	APIVersion = "pitcrew.dev/v1alpha1"
	Kind       = "RemediationPolicy"
)

// Policy is one document of a policy file.
type Policy struct {
	APIVersion string   `json:"apiVersion" jsonschema:"required,enum=pitcrew.dev/v1alpha1" jsonschema_description:"Version of the language."`
	Kind       string   `json:"kind" jsonschema:"required,enum=RemediationPolicy" jsonschema_description:"What the document is."`
	Metadata   Metadata `json:"metadata" jsonschema:"required" jsonschema_description:"The policy's name and labels."`
	Spec       Spec     `json:"spec" jsonschema:"required" jsonschema_description:"What it says."`

	File string `json:"-"` // where it was read, empty when built in Go
	Line int    `json:"-"` // the document's first line
}

// Metadata names the policy.
type Metadata struct {
	Name   string            `json:"name" jsonschema:"required" jsonschema_description:"Unique name, as Kubernetes names are."`
	Labels map[string]string `json:"labels,omitempty" jsonschema_description:"For people; Pitcrew does not read them."`
}

// Spec is what a policy says.
type Spec struct {
	Mode      Mode      `json:"mode,omitempty" jsonschema_description:"off: not looked at. observe: judged and recorded, nothing is changed (a rule of notify alone still notifies). approve: every step waits for a person. enforce: steps are done."`
	Order     int       `json:"order" jsonschema:"required" jsonschema_description:"Policies are looked at from the lowest order up; two of the same order are a load error."`
	AppliesTo AppliesTo `json:"appliesTo,omitzero" jsonschema_description:"Which nodes and jobs the policy speaks for; empty means all."`
	Guards    Guards    `json:"guards,omitzero" jsonschema_description:"Bounds on what may be done; each has a default and is always on."`
	// Uncordon applies to the nodes that this policy's incidents cordoned.
	Uncordon Uncordoning `json:"uncordon,omitzero" jsonschema_description:"When Pitcrew takes back its own cordons without an operator. By default it never does; pitcrew node uncordon and kubectl uncordon always work."`
	Rules    []Rule      `json:"rules" jsonschema:"required,minItems=1" jsonschema_description:"Looked at in order; the first that matches is taken."`
	Default  Default     `json:"default,omitempty" jsonschema_description:"What happens to an event that no rule of any policy matches."`
}

// AppliesTo selects nodes and jobs. Every field that is given must match.
type AppliesTo struct {
	Pools      []string          `json:"pools,omitempty" jsonschema:"minItems=1" jsonschema_description:"Node pools (globs), by pitcrew.dev/pool or the cloud's own pool label."`
	Namespaces []string          `json:"namespaces,omitempty" jsonschema:"minItems=1" jsonschema_description:"Namespaces of the job (globs)."`
	Nodes      map[string]string `json:"nodes,omitempty" jsonschema_description:"Labels that the node must carry, with exactly these values."`
}

// Rule is one line of the book: when this is seen, do that, and look whether it helped.
type Rule struct {
	Name string `json:"name" jsonschema:"required" jsonschema_description:"Unique within the policy; recorded with every decision."`
	When When   `json:"when" jsonschema:"required" jsonschema_description:"What must hold; all that is given."`
	// For and Worth are judged by guards of those names. Statistical findings have them also where the rule does not: see TermsOf.
	For    *Duration `json:"for,omitempty" jsonschema_description:"How long the finding must have lasted, from its onset. Default 15s for a statistical finding, else 0s."`
	Worth  *Worth    `json:"worth,omitempty" jsonschema_description:"A statistical finding acts only if it costs more than a restart does. Default {horizon: 1h, margin: 2, restart: 2m}."`
	Steps  []Step    `json:"steps" jsonschema:"required,minItems=1" jsonschema_description:"What is done, in this order."`
	Verify *Verify   `json:"verify,omitempty" jsonschema_description:"When the incident counts as healed. With restart-job, train/stepping within 60s where nothing is said."`
}

// When says which events a rule takes.
type When struct {
	Signal   Signals        `json:"signal" jsonschema:"required" jsonschema_description:"One signal or a list, globs allowed: xid/79, gpu/lost, xid/*."`
	Severity event.Severity `json:"severity,omitempty" jsonschema:"enum=info,enum=warning,enum=critical,enum=fatal" jsonschema_description:"The least severity that matches; any when missing."`
	Count    int            `json:"count,omitempty" jsonschema:"minimum=2" jsonschema_description:"How often the signal must have occurred on this GPU (or on the node, if it names none) within the time in within."`
	Within   Duration       `json:"within,omitempty" jsonschema_description:"The time in which count occurrences count, back from the event. At most 168h. Required with count."`
	Expr     string         `json:"expr,omitempty" jsonschema_description:"A CEL expression over event, node, job and incident that must be true. Unknown fields are load errors; one that fails while it runs does not match."`

	program *program
}

// Step is one action.
type Step struct {
	Do       Verb   `json:"do" jsonschema:"required" jsonschema_description:"The action."`
	With     *With  `json:"with,omitempty" jsonschema_description:"Its options."`
	Approval string `json:"approval,omitempty" jsonschema:"enum=required" jsonschema_description:"required: a person must agree before this step."`
}

// With holds the options of a step; which verb takes which is in the table of verbs.
type With struct {
	Placement   Placement `json:"placement,omitempty" jsonschema_description:"equivalent: a node of the same class, not farther from the gang than the one it replaces. same-node: where it was. any: any node of the same class with room."`
	MaxTierLoss int       `json:"maxTierLoss,omitempty" jsonschema:"minimum=0,default=0" jsonschema_description:"How many topology tiers farther an equivalent node may be; 0 is strict."`
	MaxPerJob   int       `json:"maxPerJob,omitempty" jsonschema:"minimum=1,default=3" jsonschema_description:"Restarts of one job within 24 hours."`
	FastReplace bool      `json:"fastReplace,omitempty" jsonschema:"default=false" jsonschema_description:"Allow lifting the Job controller's finalizer, so that one pod is replaced without its back-off of 10 s and more, and no failure is counted against backoffLimit."`
}

// DefaultMaxPerJob is how often one job is restarted within 24 hours where a policy says nothing.
const DefaultMaxPerJob = 3

// Verify says when a remediation has helped.
type Verify struct {
	Signal string   `json:"signal" jsonschema:"required,enum=train/stepping,enum=train/pace" jsonschema_description:"train/stepping: every rank finished a step past the checkpoint. train/pace: and steps are as short as they were before the finding, which every statistical finding has to show."`
	Within Duration `json:"within" jsonschema:"required" jsonschema_description:"How long it may take, from the restart."`
}

// Hash identifies what a policy says, so that a decision can name the very text it followed.
func (p Policy) Hash() string {
	b, err := json.Marshal(p)
	if err != nil { // every field is a plain value
		panic(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// String names the policy and where it was read.
func (p Policy) String() string {
	if p.File == "" {
		return p.Metadata.Name
	}
	return p.Metadata.Name + " (" + p.File + ")"
}
