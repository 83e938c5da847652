package policy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// MaxFileBytes bounds one policy file; a ConfigMap holds at most 1 MiB in all.
const MaxFileBytes = 256 << 10

// maxDepth bounds nesting: a policy needs seven levels, and the YAML parser takes time by the square of the depth.
const maxDepth = 32

// Error is one fault of a policy file.
type Error struct {
	File         string
	Line, Column int    // 1-based; 0 when the policy was built in Go
	Policy       string // its name, where it could be read
	Path         string // of the field, such as spec.rules[0].steps[1].do
	Msg          string
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", e.Line, e.Column)
		}
		b.WriteString(": ")
	}
	if e.Policy != "" {
		b.WriteString("policy " + e.Policy + ": ")
	}
	if e.Path != "" {
		b.WriteString(strings.TrimPrefix(e.Path, "spec.") + ": ")
	}
	b.WriteString(e.Msg)
	return b.String()
}

// Parse reads the policies of one file, one a document, with defaults filled in and expressions compiled. Every fault that is
// found is reported, as joined *Error values in the order of the file; then no policy is returned.
func Parse(file string, data []byte) ([]Policy, error) {
	out, faults := parse(file, data)
	if len(faults) > 0 {
		return nil, join(faults)
	}
	return out, nil
}

// parse is Parse that returns what could be read beside the faults.
func parse(file string, data []byte) ([]Policy, []*Error) {
	if len(data) > MaxFileBytes {
		return nil, []*Error{{File: file, Msg: fmt.Sprintf("%d bytes, over the bound of %d; split the file", len(data), MaxFileBytes)}}
	}
	data = bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
	if line := tooDeep(data); line > 0 {
		return nil, []*Error{{File: file, Line: line, Column: 1, Msg: fmt.Sprintf("nested deeper than %d", maxDepth)}}
	}
	var out []Policy
	var faults []*Error
	for _, doc := range split(data) {
		tree, err := parseYAML(doc.text)
		if err != nil {
			faults = append(faults, syntaxError(file, doc.line, err))
			continue
		}
		for _, t := range tree.Docs {
			if t.Body == nil {
				continue
			}
			if _, ok := t.Body.(*ast.CommentGroupNode); ok {
				continue
			}
			p, errs := parseDocument(file, doc, t.Body)
			out, faults = append(out, p), append(faults, errs...)
		}
	}
	return out, faults
}

func join(faults []*Error) error {
	slices.SortStableFunc(faults, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = f
	}
	return errors.Join(errs...)
}

// document is one YAML document and the number of lines before it.
type document struct {
	line int
	text []byte
}

// split cuts a file at its document markers, which YAML allows nowhere else at the start of a line. The library does so too, but
// loses what follows a document of comments only, and a policy that vanishes without a word is the worst fault a loader can have.
func split(data []byte) []document {
	docs := []document{{}}
	for i, line := range bytes.SplitAfter(data, []byte("\n")) {
		if marker(line) {
			docs = append(docs, document{line: i})
			line = append([]byte("   "), line[3:]...)
		}
		last := &docs[len(docs)-1]
		last.text = append(last.text, line...)
	}
	return docs
}

func marker(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return false
	}
	return len(line) == 3 || bytes.IndexByte([]byte(" \t\n"), line[3]) >= 0
}

func parseDocument(file string, doc document, body ast.Node) (Policy, []*Error) {
	d := &decoder{file: file, before: doc.line, lines: strings.Split(string(doc.text), "\n"), at: map[string]position{}}
	p := Policy{File: file}
	d.at[""] = d.where(body)
	d.decodePolicy(body, &p)
	p.Line = d.at[""].line
	// The meaning is checked even if the shape has faults, so that one round shows all of them. What only repeats a fault of shape is left out.
	shape := d.faults
	given := func(path string) bool { _, ok := d.at[path]; return ok }
	checkZeros(&p, given, d.fail)
	applyDefaults(&p, given)
	check(&p, d.fail)
	d.faults = append(shape, slices.DeleteFunc(d.faults[len(shape):], func(f *Error) bool { return follows(f, shape) })...)
	for _, f := range d.faults {
		f.Policy = p.Metadata.Name
	}
	return p, d.faults
}

// follows reports whether a fault of meaning comes of a fault of shape: at the same field, within it or around it, or at a field that is missing
// because it is misspelt.
func follows(f *Error, shape []*Error) bool {
	parent, field := cutLast(f.Path)
	return slices.ContainsFunc(shape, func(s *Error) bool {
		beside, _ := cutLast(s.Path)
		return within(f.Path, s.Path) || within(s.Path, f.Path) || beside == parent && strings.Contains(s.Msg, "did you mean "+field+"?")
	})
}

// within reports whether a path is another or a field in it.
func within(path, of string) bool {
	rest, ok := strings.CutPrefix(path, of)
	return ok && (of == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// parseYAML turns the parser's panics into errors: the library is not ours and policies are a door to the outside.
func parseYAML(data []byte) (f *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("malformed YAML")
		}
	}()
	return parser.ParseBytes(data, 0)
}

func syntaxError(file string, before int, err error) *Error {
	e := &Error{File: file, Msg: err.Error()}
	var y yaml.Error
	if errors.As(err, &y) {
		e.Msg = y.GetMessage()
		if t := y.GetToken(); t != nil && t.Position != nil {
			e.Line, e.Column = before+t.Position.Line, t.Position.Column
		}
	}
	return e
}

// tooDeep gives the first line at which more brackets or list dashes are open at once than any policy needs, 0 if none. Brackets
// in strings and comments count too: that only makes it refuse what nobody writes.
func tooDeep(data []byte) int {
	line, open, dashes := 1, 0, 0
	for i, c := range data {
		switch c {
		case '[', '{':
			open++
		case ']', '}':
			open = max(0, open-1)
		case '\n':
			line, dashes = line+1, 0
		case '-', '?', ':', '!', '&':
			if i+1 == len(data) || data[i+1] == ' ' || c == '!' || c == '&' {
				dashes++
			}
		}
		// Indentation deeper than this cannot belong to a field that a policy has.
		if open > maxDepth || dashes > 8*maxDepth {
			return line
		}
	}
	return 0
}

type position struct{ line, column int }

func (d *decoder) where(n ast.Node) position {
	if n == nil {
		return position{}
	}
	t := n.GetToken()
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		t = m.Values[0].Key.GetToken()
	}
	if t == nil || t.Position == nil {
		return position{}
	}
	return position{d.before + t.Position.Line, t.Position.Column}
}
