package policy

import (
	"encoding/json"

	"github.com/invopop/jsonschema"
)

// Schema is the JSON Schema of a policy document, made from the Go types, for editors and for CI. It is looser than Parse where a
// schema cannot say it: order of steps, unreachable rules, expressions.
func Schema() ([]byte, error) {
	s := reflectSchema()
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

func reflectSchema() *jsonschema.Schema {
	r := jsonschema.Reflector{RequiredFromJSONSchemaTags: true, ExpandedStruct: true, Anonymous: true}
	s := r.Reflect(Policy{})
	s.Title = Kind + " " + APIVersion
	return s
}
