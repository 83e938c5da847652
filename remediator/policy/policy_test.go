package policy_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	policies "github.com/pitcrew/pitcrew/deploy/policies"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

const head = `apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
metadata: {name: p}
spec:
  order: 1
`

// oneRule is a policy with one rule, given as the lines under "- name: r".
func oneRule(lines string) string {
	return head + "  rules:\n  - name: r\n    " + strings.ReplaceAll(strings.TrimSpace(lines), "\n", "\n    ") + "\n"
}

func shipped(t testing.TB) []policy.Policy {
	t.Helper()
	ps, err := policy.LoadFS(policies.Files)
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

var ignore = cmp.Options{cmpopts.IgnoreFields(policy.Policy{}, "File", "Line"), cmpopts.IgnoreUnexported(policy.When{}),
	cmp.Comparer(func(a, b policy.Window) bool { return a.String() == b.String() })}

func TestFaultsAreNamedWithFileLineColumnAndRemedy(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"a misspelt action": {oneRule("when: {signal: xid/79}\nsteps:\n- do: cordn"),
			`f.yaml:10:11: policy p: rules[0].steps[0].do: unknown action "cordn"; did you mean cordon?`},
		"swapped letters in an action": {oneRule("when: {signal: xid/79}\nsteps:\n- do: ntoify"), `did you mean notify?`},
		"an action like none": {oneRule("when: {signal: xid/79}\nsteps:\n- do: explode"),
			`unknown action "explode"; one of cordon, checkpoint, restart-job, reboot-node, notify`},
		"a misspelt signal": {oneRule("when: {signal: [xid/79, gpu/lots]}\nsteps: [{do: notify}]"),
			`f.yaml:8:29: policy p: rules[0].when.signal[1]: unknown signal "gpu/lots"; did you mean gpu/lost?`},
		"a misspelt kind of signal":     {oneRule("when: {signal: xdi/79}\nsteps: [{do: notify}]"), `unknown signal "xdi/79"; did you mean xid?`},
		"an xid that is no number":      {oneRule("when: {signal: xid/lost}\nsteps: [{do: notify}]"), `xid takes a number or a glob`},
		"a glob that no signal can fit": {oneRule("when: {signal: gpu/x*}\nsteps: [{do: notify}]"), `unknown signal "gpu/x*"; one of gpu/lost, gpu/ecc, `},
		"a signal without kind":         {oneRule("when: {signal: lost}\nsteps: [{do: notify}]"), `write it as kind/name`},
		"an unknown field": {oneRule("when: {signal: xid/79, severty: fatal}\nsteps: [{do: notify}]"),
			`f.yaml:8:28: policy p: rules[0].when.severty: unknown field "severty"; did you mean severity?`},
		"an unknown field like none":             {head + "  colour: red\n", `unknown field "colour"; known here: mode, order,`},
		"a misspelt mode":                        {strings.Replace(oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]"), "order: 1", "order: 1\n  mode: enforced", 1), `unknown mode "enforced"; did you mean enforce?`},
		"a severity like none":                   {oneRule("when: {signal: xid/79, severity: bad}\nsteps: [{do: notify}]"), `unknown severity "bad"; one of info, warning, critical, fatal`},
		"a duration without unit":                {head + "  guards: {maxEventAge: 60}\n  rules: []\n", `f.yaml:6:25: policy p: guards.maxEventAge: "60" is not a duration; write it like 30s, 5m or 2h`},
		"a duration in words":                    {head + "  guards: {cooldownPerNode: 2 hours}\n", `"2 hours" is not a duration`},
		"a negative duration":                    {head + "  guards: {cooldownPerNode: -2h}\n", `"-2h" is not a duration`},
		"a breaker of nothing":                   {strings.Replace(oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]"), "order: 1", "order: 1\n  guards: {maxNodesQuarantined: {}}", 1), `needs count, percent or both`},
		"a percentage over 100":                  {strings.Replace(oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]"), "order: 1", "order: 1\n  guards: {maxNodesQuarantined: {percent: 101}}", 1), `must be above 0 and at most 100`},
		"a count in words":                       {head + "  guards: {maxNodesQuarantined: {count: five}}\n", `must be a whole number, not "five"`},
		"no concurrent incidents":                {strings.Replace(oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]"), "order: 1", "order: 1\n  guards: {maxConcurrentIncidents: 0}", 1), `must be at least 1`},
		"a blackout without zone":                {head + "  guards: {blackout: [\"22:00-06:00\"]}\n", `it names no time zone`},
		"a blackout in no zone":                  {head + "  guards: {blackout: [\"22:00-06:00 Mars/Base\"]}\n", `unknown time zone Mars/Base`},
		"a blackout with one day":                {head + "  guards: {blackout: [\"Fri 22:00-06:00 UTC\"]}\n", `both ends need a weekday, or neither`},
		"a rule without steps":                   {oneRule("when: {signal: xid/79}"), `f.yaml:7:5: policy p: rules[0].steps: has no step; to be told only, use do: notify`},
		"a rule without signal":                  {oneRule("when: {severity: fatal}\nsteps: [{do: notify}]"), `name at least one signal`},
		"no rules":                               {head, `rules: has no rule`},
		"no order":                               {strings.Replace(oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]"), "  order: 1\n", "", 1), ``},
		"a field twice":                          {head + "  order: 2\n", `f.yaml:6:3: mapping key "order" already defined`},
		"an empty field":                         {oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]\nverify:"), `verify: is empty; give it a value or remove it`},
		"pools that a template did not fill in":  {head + "  appliesTo: {pools: []}\n  rules: [{name: r, when: {signal: xid/79}, steps: [{do: notify}]}]\n", `f.yaml:6:22: policy p: appliesTo.pools: is empty; name what it applies to`},
		"labels that a template did not fill in": {head + "  appliesTo: {nodes: {}}\n  rules: [{name: r, when: {signal: xid/79}, steps: [{do: notify}]}]\n", `appliesTo.nodes: is empty`},
		"a list for a mapping":                   {head + "  rules: [[]]\n", `rules[0]: must be a mapping, not a list`},
		"a mapping for a list":                   {head + "  rules: {}\n", `rules: must be a list, not a mapping`},
		"a number for a string":                  {head + "  appliesTo: {pools: [5]}\n", `must be a string, not 5 (quote it)`},
		"an alias":                               {"a: &x 1\n" + head + "  rules: *x\n", `anchors and aliases are not read`},
		"a merge key":                            {head + "  <<: {mode: off}\n", `must be a plain string`},
		"another apiVersion":                     {strings.Replace(head, "v1alpha1", "v2", 1), `unknown apiVersion "pitcrew.dev/v2"`},
		"another kind":                           {strings.Replace(head, "RemediationPolicy", "Policy", 1), `unknown kind "Policy"`},
		"a name with spaces":                     {strings.Replace(head, "{name: p}", "{name: a b}", 1), `"a b" is not a name`},
		"broken YAML":                            {"a: [1,\n", `f.yaml:1:4: sequence end token ']' not found`},
		"text that is no mapping":                {"hello\n", `must be a mapping, not "hello"`},
		"brackets without end":                   {"a: " + strings.Repeat("[", 1<<17), `f.yaml:1:1: nested deeper than 32`},
		"a file too large":                       {strings.Repeat("#", policy.MaxFileBytes+1), `over the bound of`},
		"a field the expression lacks": {oneRule("when: {signal: xid/79, expr: event.scor > 1}\nsteps: [{do: notify}]"),
			`f.yaml:8:40: policy p: rules[0].when.expr: unknown fact event.scor; nearest: event.evidence.score`},
		"an expression that gives no truth": {oneRule("when: {signal: xid/79, expr: event.count}\nsteps: [{do: notify}]"), `must be true or false, but gives int`},
		"an expression that compares kinds": {oneRule("when: {signal: xid/79, expr: event.count == 'a'}\nsteps: [{do: notify}]"), `no matching overload`},

		"a checkpoint after the restart": {oneRule("when: {signal: rank/dead}\nsteps:\n- {do: restart-job, with: {placement: same-node}}\n- do: checkpoint"),
			`f.yaml:11:11: policy p: rules[0].steps[1].do: checkpoint must come before restart-job: after it there is nothing left to save`},
		"a cordon after the restart": {oneRule("when: {signal: xid/79}\nsteps: [{do: restart-job}, {do: cordon}]"), `cordon must come before restart-job`},
		"a move without cordon": {oneRule("when: {signal: xid/79}\nsteps: [{do: restart-job}]"),
			`restart-job with placement equivalent needs cordon before it`},
		"a move anywhere without cordon":     {oneRule("when: {signal: xid/79}\nsteps: [{do: restart-job, with: {placement: any}}]"), `restart-job with placement any needs cordon before it`},
		"back to a cordoned node":            {oneRule("when: {signal: xid/79}\nsteps: [{do: cordon}, {do: restart-job, with: {placement: same-node}}]"), `same-node contradicts cordon`},
		"a reboot without approval":          {oneRule("when: {signal: xid/79}\nsteps: [{do: cordon}, {do: reboot-node}]"), `reboot-node needs approval: required`},
		"a reboot without cordon":            {oneRule("when: {signal: xid/79}\nsteps: [{do: reboot-node, approval: required}]"), `reboot-node needs cordon before it`},
		"a step twice":                       {oneRule("when: {signal: xid/79}\nsteps: [{do: cordon}, {do: cordon}]"), `cordon is already step 1`},
		"options where there are none":       {oneRule("when: {signal: xid/79}\nsteps: [{do: cordon, with: {maxPerJob: 1}}]"), `cordon takes no options`},
		"a tier loss where it means nothing": {oneRule("when: {signal: rank/dead}\nsteps: [{do: restart-job, with: {placement: same-node, maxTierLoss: 1}}]"), `means nothing with placement: same-node`},
		"no restarts at all":                 {oneRule("when: {signal: rank/dead}\nsteps: [{do: restart-job, with: {placement: same-node, maxPerJob: 0}}]"), `must be at least 1`},
		"a misspelt placement":               {oneRule("when: {signal: rank/dead}\nsteps: [{do: restart-job, with: {placement: samenode}}]"), `did you mean same-node?`},
		"an approval that is no word":        {oneRule("when: {signal: xid/79}\nsteps: [{do: cordon, approval: yes please}]"), `the only word is required`},
		"acting on a lost agent":             {oneRule("when: {signal: agent/lost}\nsteps: [{do: cordon}]"), `agent/lost is information and never acts`},
		"a verify signal like none":          {oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]\nverify: {signal: train/steping, within: 60s}"), `did you mean train/stepping?`},
		"a verify without limit":             {oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]\nverify: {signal: train/stepping}"), `say how long it may take`},
		"a rule that can never match": {oneRule("when: {signal: xid/*}\nsteps: [{do: notify}]") + "  - {name: s, when: {signal: [xid/79, xid/4*], severity: fatal}, steps: [{do: notify}]}\n",
			`rules[1].when: can never match: rule 1 (r) comes first and takes all of it`},
		"two rules of one name": {oneRule("when: {signal: xid/1}\nsteps: [{do: notify}]") + "  - {name: r, when: {signal: xid/79}, steps: [{do: notify}]}\n",
			`"r" is already the name of rule 1`},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "no order" {
				c.want = `f.yaml:5:3: policy p: order: missing; give each policy a number of its own`
			}
			ps, err := policy.Parse("f.yaml", []byte(c.in))
			if err == nil {
				t.Fatalf("was read: %+v", ps)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if ps != nil {
				t.Error("policies came with the error")
			}
		})
	}
}

func TestEveryFaultIsReportedInTheOrderOfTheFile(t *testing.T) {
	_, err := policy.Parse("f.yaml", []byte(oneRule("when: {signal: xdi/79}\nsteps:\n- do: cordn\n- do: notfy")+"---\n"+head+"  extra: 1\n"))
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("got %v", err)
	}
	var lines []int
	for _, e := range joined.Unwrap() {
		var pe *policy.Error
		if !errors.As(e, &pe) {
			t.Fatalf("%T", e)
		}
		lines = append(lines, pe.Line)
	}
	if d := cmp.Diff([]int{8, 10, 11, 17, 18}, lines); d != "" {
		t.Errorf("%s\n%v", d, err)
	}
}

func TestWhatIsLeftOutGetsItsDefault(t *testing.T) {
	ps, err := policy.Parse("f.yaml", []byte(oneRule("when: {signal: xid/79}\nsteps: [{do: cordon}, {do: restart-job}]")))
	if err != nil {
		t.Fatal(err)
	}
	p := ps[0]
	if p.Spec.Mode != policy.Observe || p.Spec.Default != policy.DefaultNotify {
		t.Errorf("mode %s, default %s", p.Spec.Mode, p.Spec.Default)
	}
	if d := cmp.Diff(policy.DefaultGuards(), p.Spec.Guards, ignore); d != "" {
		t.Error(d)
	}
	r := p.Spec.Rules[0]
	if d := cmp.Diff(&policy.With{Placement: policy.Equivalent, MaxPerJob: 3}, r.Steps[1].With); d != "" {
		t.Error(d)
	}
	if r.Verify == nil || r.Verify.Within.String() != "1m" {
		t.Errorf("verify %v", r.Verify)
	}
}

func TestZeroThatIsWrittenIsNotReplacedByADefault(t *testing.T) {
	ps, err := policy.Parse("f.yaml", []byte(strings.Replace(oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]"),
		"order: 1", "order: 1\n  mode: off\n  guards: {cooldownPerNode: 0s, maxNodesQuarantined: {percent: 10}}", 1)))
	if err != nil {
		t.Fatal(err)
	}
	g := ps[0].Spec.Guards
	if g.CooldownPerNode != 0 || g.MaxNodesQuarantined != (policy.Share{Percent: 10}) || ps[0].Spec.Mode != policy.Off {
		t.Errorf("%+v, mode %s", g, ps[0].Spec.Mode)
	}
}

func TestOneFileMayHoldSeveralPoliciesAndEmptyDocuments(t *testing.T) {
	one := oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]")
	two := strings.NewReplacer("name: p", "name: q", "order: 1", "order: 2").Replace(one)
	ps, err := policy.Parse("f.yaml", []byte("# head\n---\n"+one+"---\n# nothing\n---\n"+two))
	if err != nil {
		t.Fatal(err)
	}
	if len(ps) != 2 || ps[0].Metadata.Name != "p" || ps[1].Metadata.Name != "q" || ps[1].Line <= ps[0].Line {
		t.Errorf("%+v", ps)
	}
}

func TestTwoPoliciesOfOneOrderAreRefusedNamingBothFiles(t *testing.T) {
	dir := t.TempDir()
	one := oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]")
	for name, body := range map[string]string{"a.yaml": one, "b.yml": strings.Replace(one, "name: p", "name: q", 1), "..hidden.yaml": "]", "note.txt": "]"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ps, err := policy.Load(dir)
	if err == nil || ps != nil {
		t.Fatalf("a tie was loaded: %v", ps)
	}
	for _, want := range []string{"a.yaml", "b.yml", "1 is also the order of policy p"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if _, err = policy.Load(filepath.Join(dir, "a.yaml")); err != nil {
		t.Errorf("one file by name: %v", err)
	}
	if _, err = policy.Load(filepath.Join(dir, "a.yaml"), filepath.Join(dir, "missing.yaml")); err == nil {
		t.Error("a missing file was passed over")
	}
	if _, err = policy.Load(t.TempDir()); err == nil {
		t.Error("an empty folder was taken for a rule book")
	}
}

func TestShippedPoliciesObserve(t *testing.T) {
	ps := shipped(t)
	if len(ps) != 4 {
		t.Fatalf("%d policies", len(ps))
	}
	for _, p := range ps {
		if p.Spec.Mode != policy.Observe {
			t.Errorf("%s ships as %s", p, p.Spec.Mode)
		}
	}
}

func TestCopiesInAnotherModeReadBackTheSameAndLeaveTheOriginalsAlone(t *testing.T) {
	ps := shipped(t)
	enforced := policy.WithGuards(policy.WithMode(ps, policy.Enforce), func(g *policy.Guards) { g.CooldownPerNode = 0 })
	text, err := policy.Marshal(enforced)
	if err != nil {
		t.Fatal(err)
	}
	back, err := policy.Parse("copy.yaml", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if d := cmp.Diff(enforced, back, ignore); d != "" {
		t.Error(d)
	}
	if ps[0].Spec.Mode != policy.Observe || ps[0].Spec.Guards.CooldownPerNode == 0 {
		t.Error("the originals changed")
	}
	if enforced[0].Hash() == ps[0].Hash() || enforced[0].Hash() != back[0].Hash() {
		t.Error("the hash must follow what a policy says and nothing else")
	}
	off := policy.WithMode(ps, policy.Off)
	if policy.WithMode(off, policy.Enforce)[0].Spec.Mode != policy.Off {
		t.Error("an override woke a policy that was off")
	}
}

func TestAPolicyBuiltInGoIsHeldToTheSameRules(t *testing.T) {
	p := shipped(t)[0]
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	p.Spec.Order = 0
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "order") {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	entries, err := policies.Files.ReadDir(".")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries {
		b, err := policies.Files.ReadFile(e.Name())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(oneRule("when: {signal: [xid/79], expr: 'event.count > 1'}\nsteps:\n- do: notify")))
	f.Add([]byte("a: &x [*x]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ps, err := policy.Parse("f.yaml", b)
		if (err != nil) && ps != nil {
			t.Fatal("policies came with an error")
		}
		if err != nil {
			return
		}
		text, err := policy.Marshal(ps)
		if err != nil {
			t.Fatalf("read but not written: %v", err)
		}
		if len(text) > policy.MaxFileBytes {
			return
		}
		again, err := policy.Parse("f.yaml", text)
		if err != nil {
			t.Fatalf("written but not read: %v\n%s", err, text)
		}
		if len(again) != len(ps) {
			t.Fatalf("%d became %d", len(ps), len(again))
		}
		for i := range ps {
			if ps[i].Hash() != again[i].Hash() {
				t.Fatalf("policy %d changed: %s", i, cmp.Diff(ps[i], again[i], ignore))
			}
		}
	})
}

func TestAFaultOfAnExpressionIsAtItsPlaceInTheFile(t *testing.T) {
	for name, c := range map[string]struct{ when, want string }{
		"plain":               {"when:\n  signal: xid/79\n  expr: node.ready && job.lables.a == 'b'", "f.yaml:10:31: policy p: rules[0].when.expr: unknown fact job.lables; nearest: job.labels, node.labels"},
		"in quotes":           {"when:\n  signal: xid/79\n  expr: \"node.ready && job.lables.a == 'b'\"", "f.yaml:10:32: policy p: rules[0].when.expr: unknown fact job.lables"},
		"in a block":          {"when:\n  signal: xid/79\n  expr: |\n    node.ready &&\n      job.lables.a == 'b'", "f.yaml:12:15: policy p: rules[0].when.expr: unknown fact job.lables"},
		"folded":              {"when:\n  signal: xid/79\n  expr: >\n    node.ready &&\n    job.lables.a == 'b'", "(at 1:19 of the expression)"},
		"with escapes":        {"when:\n  signal: xid/79\n  expr: 'job.lables.a == ''b'''", "f.yaml:10:13: policy p: rules[0].when.expr: unknown fact job.lables; nearest: job.labels, node.labels (at 1:5 of the expression)"},
		"of another kind":     {"when:\n  signal: xid/79\n  expr: event.count == 'a'", "f.yaml:10:25: policy p: rules[0].when.expr: found no matching overload"},
		"a second fault, too": {"when:\n  signal: xid/79\n  expr: job.lables.a == 'b' || node.redy", "f.yaml:10:41: policy p: rules[0].when.expr: unknown fact node.redy; nearest: node.ready"},
		"broken":              {"when:\n  signal: xid/79\n  expr: node.ready &&", "f.yaml:10:26: policy p: rules[0].when.expr: Syntax error"},
	} {
		_, err := policy.Parse("f.yaml", []byte(oneRule(c.when+"\nsteps: [{do: notify}]")))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, c.want)
		}
	}
	two := oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]") + "---\n" + strings.Replace(oneRule("when: {signal: xid/79, expr: node.redy}\nsteps: [{do: notify}]"), "order: 1", "order: 2", 1)
	if _, err := policy.Parse("f.yaml", []byte(two)); err == nil || !strings.Contains(err.Error(), "f.yaml:18:39: ") {
		t.Errorf("in the second document: %v", err)
	}
}

// manyFaults has faults of shape and of meaning, in two documents.
const manyFaults = `apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
metadata: {name: p}
spec:
  order: 1
  mode: enforced
  guards: {maxEventAge: 60, colour: red}
  rules:
  - {name: a, when: {signal: xdi/79}, steps: [{do: cordn}]}
  - {name: b, when: {sginal: xid/79}, steps: [{do: restart-job}]}
  - {name: c, when: {signal: xid/48, expr: job.lables.a == 'b'}, steps: [{do: reboot-node}]}
  - {name: d, when: {signal: xid/13, severity: bad}, steps: [{do: notify, approval: maybe}]}
---
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
metadata: {name: q}
spec:
  order: 2
  rules:
  - {name: e, when: {signal: gpu/lots}, steps: [{do: notify}]}
`

func TestEveryFaultOfAFileIsReportedAtOnce(t *testing.T) {
	dir := t.TempDir()
	other := strings.Replace(oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]"), "{name: p}", "{name: other}", 1)
	for name, text := range map[string]string{"a.yaml": manyFaults, "b.yaml": other} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := policy.Load(dir)
	if err == nil {
		t.Fatal("it loads")
	}
	want := []string{
		`a.yaml:6:9: policy p: mode: unknown mode "enforced"; did you mean enforce?`,
		`a.yaml:7:25: policy p: guards.maxEventAge: "60" is not a duration; write it like 30s, 5m or 2h`,
		`a.yaml:7:29: policy p: guards.colour: unknown field "colour"`,
		`a.yaml:9:30: policy p: rules[0].when.signal: unknown signal "xdi/79"; did you mean xid?`,
		`a.yaml:9:52: policy p: rules[0].steps[0].do: unknown action "cordn"; did you mean cordon?`,
		`a.yaml:10:22: policy p: rules[1].when.sginal: unknown field "sginal"; did you mean signal?`,
		`rules[1].steps[0].do: restart-job with placement equivalent needs cordon before it`,
		`rules[2].when.expr: unknown fact job.lables; nearest: job.labels`,
		`rules[2].steps[0].approval: reboot-node needs approval: required`,
		`rules[2].steps[0].do: reboot-node needs cordon before it`,
		`rules[3].when.severity: unknown severity "bad"`,
		`rules[3].steps[0].approval: unknown approval "maybe"`,
		`policy q: rules[0].when.signal: unknown signal "gpu/lots"; did you mean gpu/lost?`,
		`b.yaml:1:1: policy other: order: 1 is also the order of policy p`,
	}
	got := strings.Split(err.Error(), "\n")
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("missing: %s", w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d faults, want %d:\n%s", len(got), len(want), err)
	}
}
