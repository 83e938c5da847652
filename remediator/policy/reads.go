package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
)

// place is a line and column of a text, from 1.
type place struct {
	line, column int
	text         string
}

// exprFault is one fault of an expression.
type exprFault struct {
	msg          string
	line, column int // within it, from 1
}

// reader collects the facts that an expression reads, and what it reads that is none.
type reader struct {
	source *ast.SourceInfo
	filled func(Fact) bool
	reads  map[string]bool
	faults []exprFault
}

func (r *reader) fail(at int64, format string, args ...any) {
	l := r.source.GetStartLocation(at)
	r.faults = append(r.faults, exprFault{fmt.Sprintf(format, args...), l.Line(), l.Column() + 1})
}

// failField is fail at the name of a selected field, which follows the dot.
func (r *reader) failField(at int64, format string, args ...any) {
	r.fail(at, format, args...)
	r.faults[len(r.faults)-1].column++
}

// visit walks an expression. bound are the variables of the macros around it, which may have the name of a root.
func (r *reader) visit(e ast.Expr, bound []string) {
	switch e.Kind() {
	case ast.IdentKind:
		if name := e.AsIdent(); roots[name] != nil && !slices.Contains(bound, name) {
			r.fail(e.ID(), "%s is used as a whole; read its fields, such as %s", name, firstFact(name))
		}
	case ast.SelectKind:
		if path, ids, ok := chain(e, bound); ok {
			r.resolve(path, ids)
			return
		}
		r.visit(e.AsSelect().Operand(), bound)
	case ast.CallKind:
		c := e.AsCall()
		if c.IsMemberFunction() {
			r.visit(c.Target(), bound)
		}
		for _, a := range c.Args() {
			r.visit(a, bound)
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		r.visit(c.IterRange(), bound)
		r.visit(c.AccuInit(), bound)
		inner := append(slices.Clone(bound), c.IterVar(), c.IterVar2(), c.AccuVar())
		r.visit(c.LoopCondition(), inner)
		r.visit(c.LoopStep(), inner)
		r.visit(c.Result(), append(slices.Clone(bound), c.AccuVar()))
	case ast.ListKind:
		for _, x := range e.AsList().Elements() {
			r.visit(x, bound)
		}
	case ast.MapKind:
		for _, x := range e.AsMap().Entries() {
			r.visit(x.AsMapEntry().Key(), bound)
			r.visit(x.AsMapEntry().Value(), bound)
		}
	case ast.StructKind:
		for _, x := range e.AsStruct().Fields() {
			r.visit(x.AsStructField().Value(), bound)
		}
	}
}

// chain is a selection from a root, such as job.labels.team, with the id of each selection; ok is false for any other.
func chain(e ast.Expr, bound []string) (path []string, ids []int64, ok bool) {
	for e.Kind() == ast.SelectKind {
		path, ids = append(path, e.AsSelect().FieldName()), append(ids, e.ID())
		e = e.AsSelect().Operand()
	}
	if e.Kind() != ast.IdentKind || roots[e.AsIdent()] == nil || slices.Contains(bound, e.AsIdent()) {
		return nil, nil, false
	}
	path, ids = append(path, e.AsIdent()), append(ids, e.ID())
	slices.Reverse(path)
	slices.Reverse(ids)
	return path, ids, true
}

// resolve records the fact at the beginning of a path, and refuses a path that leads to none or to one that nothing fills.
func (r *reader) resolve(path []string, ids []int64) {
	for n := 2; n <= len(path); n++ {
		name := strings.Join(path[:n], ".")
		if i := slices.IndexFunc(facts, func(f Fact) bool { return f.Path == name }); i >= 0 {
			if !r.filled(facts[i]) {
				r.failField(ids[n-1], "nothing fills %s%s", name, r.nearest(name))
				return
			}
			r.reads[name] = true
			return
		}
		if !slices.ContainsFunc(facts, func(f Fact) bool { return strings.HasPrefix(f.Path, name+".") }) {
			r.failField(ids[n-1], "unknown fact %s%s", name, r.nearest(name))
			return
		}
	}
	name := strings.Join(path, ".")
	r.failField(ids[len(ids)-1], "%s is used as a whole; read its fields, such as %s", name, firstFact(name))
}

func firstFact(prefix string) string {
	i := slices.IndexFunc(facts, func(f Fact) bool { return strings.HasPrefix(f.Path, prefix+".") })
	return facts[i].Path
}

// nearest names up to three filled facts of a similar name.
func (r *reader) nearest(name string) string {
	type near struct {
		path string
		d    int
	}
	var all []near
	parent, leaf := cutLast(name)
	for _, f := range facts {
		if !r.filled(f) || f.Path == name {
			continue
		}
		p, l := cutLast(f.Path)
		d := 2 * editDistance(strings.ToLower(leaf), strings.ToLower(l))
		if strings.Contains(strings.ToLower(l), strings.ToLower(leaf)) || strings.Contains(strings.ToLower(leaf), strings.ToLower(l)) {
			d = min(d, 2)
		}
		if p != parent {
			d++
		}
		if d <= max(3, len(leaf)) {
			all = append(all, near{f.Path, d})
		}
	}
	slices.SortStableFunc(all, func(a, b near) int { return cmp.Compare(a.d, b.d) })
	var names []string
	for _, n := range all[:min(3, len(all))] {
		names = append(names, n.path)
	}
	if len(names) == 0 {
		return "; docs/policy.md lists all facts"
	}
	return "; nearest: " + strings.Join(names, ", ")
}

func cutLast(path string) (parent, leaf string) {
	i := strings.LastIndexByte(path, '.')
	return path[:max(i, 0)], path[i+1:]
}

// Reading is one rule's expression and a fact that it reads.
type Reading struct {
	Policy, Rule string
	Fact         Fact
}

// Readings lists, of all rules of the policies, the facts that their expressions read.
func Readings(ps []Policy) (out []Reading) {
	for _, p := range ps {
		for _, r := range p.Spec.Rules {
			if r.When.Expr == "" {
				continue
			}
			prog := r.When.program
			if prog == nil {
				var faults []exprFault
				if prog, faults = compile(r.When.Expr); len(faults) > 0 {
					continue // it matches nothing, and the judgement says why
				}
			}
			for _, f := range typedFacts() {
				if slices.Contains(prog.reads, f.Path) {
					out = append(out, Reading{p.Metadata.Name, r.Name, f})
				}
			}
		}
	}
	return out
}
