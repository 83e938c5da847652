package policy_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	policies "github.com/pitcrew/pitcrew/deploy/policies"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	b, err := policy.Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("policy.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("policy.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	j, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(j, &v); err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

func TestTheSchemaTakesWhatTheParserTakes(t *testing.T) {
	s := schema(t)
	entries, err := policies.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := policies.Files.ReadFile(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(t, s, b); err != nil {
			t.Errorf("%s: %v", e.Name(), err)
		}
	}
	full, err := policy.Marshal(policy.WithMode(shipped(t)[:1], policy.Enforce))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, s, full); err != nil {
		t.Errorf("written by Marshal: %v", err)
	}
	few := strings.Replace(oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]"), "order: 1", "order: 1\n  guards: {blackout: ['22:00-06:00 UTC', 'Fri 18:00-Mon 06:00 Europe/Berlin'], maxNodesQuarantined: {percent: 2.5}}", 1)
	if _, err := policy.Parse("f.yaml", []byte(few)); err != nil {
		t.Error(err)
	}
	if err := validate(t, s, []byte(few)); err != nil {
		t.Error(err)
	}
}

func TestTheSchemaRefusesWhatItCanSee(t *testing.T) {
	s := schema(t)
	for name, text := range map[string]string{
		"unknown field": head + "  colour: red\n  rules: [{name: r, when: {signal: xid/79}, steps: [{do: notify}]}]\n",
		"action":        oneRule("when: {signal: xid/79}\nsteps: [{do: cordn}]"),
		"duration":      head + "  guards: {maxEventAge: 60}\n  rules: [{name: r, when: {signal: xid/79}, steps: [{do: notify}]}]\n",
		"mode":          head + "  mode: on\n  rules: [{name: r, when: {signal: xid/79}, steps: [{do: notify}]}]\n",
		"zone":          head + "  guards: {blackout: ['22:00-06:00']}\n  rules: [{name: r, when: {signal: xid/79}, steps: [{do: notify}]}]\n",
		"no rules":      head,
	} {
		if err := validate(t, s, []byte(text)); err == nil {
			t.Errorf("%s: the schema took it", name)
		}
		if _, err := policy.Parse("f.yaml", []byte(text)); err == nil {
			t.Errorf("%s: the parser took it", name)
		}
	}
}
