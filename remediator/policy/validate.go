package policy

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// Validate checks a policy that was built or changed in Go by the rules that files are held to.
func (p Policy) Validate() error {
	var faults []error
	check(&p, func(path, msg string, _ ...place) {
		faults = append(faults, &Error{File: p.File, Policy: p.Metadata.Name, Path: path, Msg: msg})
	})
	return errors.Join(faults...)
}

// applyDefaults fills what the file left out. given tells "left out" from "written as zero", which is then judged, not replaced.
func applyDefaults(p *Policy, given func(path string) bool) {
	if !given("spec.mode") {
		p.Spec.Mode = Observe
	}
	if !given("spec.default") {
		p.Spec.Default = DefaultNotify
	}
	applyGuardDefaults(&p.Spec.Guards, func(path string) bool { return given("spec.guards." + path) })
	for i := range p.Spec.Rules {
		r := &p.Spec.Rules[i]
		r.Worth.fill(func(field string) bool { return given(fmt.Sprintf("spec.rules[%d].worth.%s", i, field)) })
		for j := range r.Steps {
			s := &r.Steps[j]
			if s.Do != RestartJob {
				continue
			}
			if s.With == nil {
				s.With = &With{}
			}
			at := fmt.Sprintf("spec.rules[%d].steps[%d].with.", i, j)
			if !given(at + "placement") {
				s.With.Placement = Equivalent
			}
			if !given(at + "maxPerJob") {
				s.With.MaxPerJob = DefaultMaxPerJob
			}
			if r.Verify == nil {
				r.Verify = &Verify{Signal: Stepping, Within: Duration(time.Minute)}
			}
		}
	}
}

// applyGuardDefaults fills each guard that the file left out. Of a breaker that gives only limits per rack, pool or job, count and percent
// keep their defaults; an empty one stays empty and is refused.
func applyGuardDefaults(g *Guards, given func(path string) bool) {
	def := DefaultGuards()
	for path, set := range map[string]func(){
		"scope":                  func() { g.Scope = def.Scope },
		"maxConcurrentIncidents": func() { g.MaxConcurrentIncidents = def.MaxConcurrentIncidents },
		"maxNodesQuarantined":    func() { g.MaxNodesQuarantined = def.MaxNodesQuarantined },
		"cooldownPerNode":        func() { g.CooldownPerNode = def.CooldownPerNode },
		"actionBudget":           func() { g.ActionBudget = def.ActionBudget },
		"maxEventAge":            func() { g.MaxEventAge = def.MaxEventAge },
		"takeUpWithin":           func() { g.TakeUpWithin = def.TakeUpWithin },
		"approvalWithin":         func() { g.ApprovalWithin = def.ApprovalWithin },
		"unsteered":              func() { g.Unsteered = def.Unsteered },
		"kernelConditionMaxAge":  func() { g.KernelConditionMaxAge = def.KernelConditionMaxAge },
		"oneCause.nodes":         func() { g.OneCause.Nodes = def.OneCause.Nodes },
		"oneCause.within":        func() { g.OneCause.Within = def.OneCause.Within },
	} {
		if !given(path) {
			set()
		}
	}
	if q := &g.MaxNodesQuarantined; q.Count == 0 && q.Percent == 0 && q.perDomain() {
		q.Count, q.Percent = def.MaxNodesQuarantined.Count, def.MaxNodesQuarantined.Percent
	}
	filled := g.Deadlines.complete()
	for path, set := range map[string]func(){
		"report":  func() { g.Deadlines.Report = filled.Report },
		"wait":    func() { g.Deadlines.Wait = filled.Wait },
		"stopped": func() { g.Deadlines.Stopped = filled.Stopped },
	} {
		if !given("deadlines." + path) {
			set()
		}
	}
}

// checkZeros refuses a limit that was written as zero: left out it means no limit of that kind, which is the opposite.
func checkZeros(p *Policy, given func(path string) bool, fail checker) {
	for i, r := range p.Spec.Rules {
		if at := fmt.Sprintf("spec.rules[%d].when.count", i); r.When.Count == 0 && given(at) {
			fail(at, "must be at least 2; every event is one occurrence")
		}
	}
	q := p.Spec.Guards.MaxNodesQuarantined
	for _, l := range []struct {
		name string
		zero bool
	}{{"count", q.Count == 0}, {"percent", q.Percent == 0}, {"perRack", q.PerRack == 0}, {"perPool", q.PerPool == 0}, {"perJob", q.PerJob == 0}} {
		at := "spec.guards.maxNodesQuarantined." + l.name
		if l.zero && given(at) {
			fail(at, "must be above 0; leave it out for no such limit, or use mode: observe to act on nothing")
		}
	}
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// checker collects faults by path. The place, if given, is within the text at the path.
type checker func(path, msg string, at ...place)

func (c checker) err(path string, err error) {
	if err != nil {
		c(path, err.Error())
	}
}

func (c checker) need(ok bool, path, msg string) {
	if !ok {
		c(path, msg)
	}
}

func check(p *Policy, fail checker) {
	fail.err("apiVersion", oneOf("apiVersion", p.APIVersion, []string{APIVersion}))
	fail.err("kind", oneOf("kind", p.Kind, []string{Kind}))
	fail.need(nameForm.MatchString(p.Metadata.Name), "metadata.name",
		fmt.Sprintf("%q is not a name: lower-case letters, digits, - and .", p.Metadata.Name))
	s := &p.Spec
	fail.err("spec.mode", oneOf("mode", string(s.Mode), modeWords))
	fail.err("spec.default", oneOf("default", string(s.Default), defaultWords))
	fail.need(s.Order > 0, "spec.order", "missing; give each policy a number of its own, from 1, lowest looked at first")
	a := s.AppliesTo
	for _, f := range []struct {
		name  string
		empty bool // given, that is, with nothing in it: what a template did not fill in may not come to mean every node
	}{{"pools", a.Pools != nil && len(a.Pools) == 0}, {"namespaces", a.Namespaces != nil && len(a.Namespaces) == 0}, {"nodes", a.Nodes != nil && len(a.Nodes) == 0}} {
		fail.need(!f.empty, "spec.appliesTo."+f.name, "is empty; name what it applies to, or remove it: then it is all")
	}
	for i, g := range a.Pools {
		fail.err(fmt.Sprintf("spec.appliesTo.pools[%d]", i), checkGlob(g))
	}
	for i, g := range a.Namespaces {
		fail.err(fmt.Sprintf("spec.appliesTo.namespaces[%d]", i), checkGlob(g))
	}
	checkGuards(s.Guards, fail)
	fail.need(len(s.Rules) > 0, "spec.rules", "has no rule; a policy that says nothing is a mistake")
	for i := range s.Rules {
		checkRule(s.Rules, i, fail)
	}
}

func checkGlob(g string) error {
	if _, err := path.Match(g, ""); err != nil || g == "" {
		return fmt.Errorf("%q is not a glob", g)
	}
	return nil
}

func checkRule(rules []Rule, i int, fail checker) {
	r := &rules[i]
	at := fmt.Sprintf("spec.rules[%d].", i)
	fail.need(r.Name != "", at+"name", "missing; decisions are recorded by rule name")
	for j := range i {
		fail.need(rules[j].Name != r.Name || r.Name == "", at+"name", fmt.Sprintf("%q is already the name of rule %d", r.Name, j+1))
	}
	fail.need(len(r.When.Signal) > 0, at+"when.signal", "missing; name at least one signal, such as xid/79")
	for j, s := range r.When.Signal {
		where := at + "when.signal"
		if len(r.When.Signal) > 1 {
			where += fmt.Sprintf("[%d]", j)
		}
		fail.err(where, checkSignal(s))
	}
	if r.When.Severity != "" {
		fail.err(at+"when.severity", oneOf("severity", string(r.When.Severity),
			words(event.Info, event.Warning, event.Critical, event.Fatal)))
	}
	if r.When.Expr != "" {
		prog, faults := compile(r.When.Expr)
		for _, f := range faults {
			fail(at+"when.expr", f.msg, place{f.line, f.column, r.When.Expr})
		}
		r.When.program = prog
	}
	checkCount(r.When, at+"when.", fail)
	checkTerms(r, at, fail)
	checkReachable(rules, i, fail)
	checkSteps(r, at, fail)
	if v := r.Verify; v != nil {
		fail.err(at+"verify.signal", oneOf("signal", v.Signal, verifySignals))
		fail.need(v.Within > 0, at+"verify.within", "missing; say how long it may take, such as 60s")
	}
}

// checkReachable refuses a rule that an earlier one always takes the events of.
func checkReachable(rules []Rule, i int, fail checker) {
	r := rules[i]
	for j, e := range rules[:i] {
		if e.When.Expr != "" || e.When.Count > 0 || !(e.When.Severity == "" || r.When.Severity.AtLeast(e.When.Severity)) || len(r.When.Signal) == 0 {
			continue
		}
		covered := func(s string) bool {
			// A pattern covers itself and every plain signal it matches; whether one glob covers another is not asked.
			return slices.ContainsFunc(e.When.Signal, func(p string) bool {
				return p == s || p == "*" || (!isGlob(s) && globMatch(p, s)) || strings.HasSuffix(p, "/*") && strings.HasPrefix(s, strings.TrimSuffix(p, "*"))
			})
		}
		if !slices.ContainsFunc(r.When.Signal, func(s string) bool { return !covered(s) }) {
			fail(fmt.Sprintf("spec.rules[%d].when", i), fmt.Sprintf("can never match: rule %d (%s) comes first and takes all of it", j+1, e.Name))
			return
		}
	}
}

func checkSteps(r *Rule, at string, fail checker) {
	fail.need(len(r.Steps) > 0, at+"steps", "has no step; to be told only, use do: notify")
	done := map[Verb]int{}
	last := VerbInfo{}
	for j, s := range r.Steps {
		where := fmt.Sprintf("%ssteps[%d].", at, j)
		info, ok := s.Do.Info()
		if !ok {
			fail.err(where+"do", oneOf("action", string(s.Do), verbWords))
			continue
		}
		checkOptions(s, info, where, fail)
		fail.need(s.Approval == "" || s.Approval == "required", where+"approval",
			fmt.Sprintf("unknown approval %q; the only word is required", s.Approval))
		if _, twice := done[s.Do]; twice && s.Do != Notify {
			fail(where+"do", fmt.Sprintf("%s is already step %d", s.Do, done[s.Do]))
			continue
		}
		done[s.Do] = j + 1
		if info.rank > 0 {
			if info.rank < last.rank {
				fail(where+"do", fmt.Sprintf("%s must come before %s: %s", s.Do, last.Verb, whyBefore[s.Do]))
			}
			if info.rank > last.rank {
				last = info
			}
		}
		if k := slices.IndexFunc(r.When.Signal, func(p string) bool { return p != "*" && informational(p) }); k >= 0 && s.Do != Notify {
			fail(where+"do", r.When.Signal[k]+" is information and never acts; use do: notify")
		}
	}
	checkRestart(r, at, done, fail)
	if j, ok := done[RebootNode]; ok {
		where := fmt.Sprintf("%ssteps[%d].", at, j-1)
		fail.need(r.Steps[j-1].Approval == "required", where+"approval", "reboot-node needs approval: required")
		fail.need(done[Cordon] > 0, where+"do", "reboot-node needs cordon before it, or new pods land on a node about to go down")
	}
}

var whyBefore = map[Verb]string{
	Cordon:     "else the scheduler may put the job back on the node it left",
	Checkpoint: "after it there is nothing left to save",
	RestartJob: "a node is repaired after the job has left it",
}

// checkOptions refuses `with` fields that the verb does not take.
func checkOptions(s Step, info VerbInfo, where string, fail checker) {
	if s.With == nil {
		return
	}
	if len(info.Options) == 0 {
		fail(where+"with", fmt.Sprintf("%s takes no options", s.Do))
		return
	}
	w := *s.With
	fail.err(where+"with.placement", oneOf("placement", string(w.Placement), placementWords))
	fail.need(w.MaxTierLoss >= 0, where+"with.maxTierLoss", "must be 0 (strict) or more")
	fail.need(w.MaxPerJob >= 1, where+"with.maxPerJob", "must be at least 1; to restart nothing leave the step out")
	fail.need(w.MaxTierLoss <= 0 || w.Placement == Equivalent, where+"with.maxTierLoss",
		fmt.Sprintf("means nothing with placement: %s; remove one of them", cmp.Or(w.Placement, Equivalent)))
}

// checkRestart holds cordon and placement together.
func checkRestart(r *Rule, at string, done map[Verb]int, fail checker) {
	j, ok := done[RestartJob]
	if !ok || r.Steps[j-1].With == nil {
		return
	}
	where := fmt.Sprintf("%ssteps[%d].", at, j-1)
	switch p := r.Steps[j-1].With.Placement; {
	case p == SameNode && done[Cordon] > 0:
		fail(where+"with.placement", "same-node contradicts cordon: a cordoned node takes no pod back; drop cordon or use placement: equivalent")
	case p != SameNode && done[Cordon] == 0:
		fail(where+"do", fmt.Sprintf("restart-job with placement %s needs cordon before it, else the scheduler may put the job back on the node it left; "+
			"add do: cordon or use placement: same-node", p))
	}
}
