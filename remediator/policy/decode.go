package policy

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// decoder fills Go values from the syntax tree, strictly, remembering where each field stood. It exists beside the library's own
// because that one stops at the first fault and forgets positions, and a person fixing a file wants all of them.
type decoder struct {
	file   string
	before int                 // lines of the file before the document
	lines  []string            // of the document
	at     map[string]position // path → where its value stands
	faults []*Error
}

// fail records a fault at the nearest place that is known for the path, or at a place within the text there.
func (d *decoder) fail(path, msg string, within ...place) {
	at := path
	for {
		if p, ok := d.at[at]; ok {
			if len(within) > 0 && at == path {
				p, msg = d.inText(p, within[0], msg)
			}
			d.faults = append(d.faults, &Error{File: d.file, Line: p.line, Column: p.column, Path: path, Msg: msg})
			return
		}
		i := strings.LastIndexAny(at, ".[")
		if i < 0 {
			i = 0
		}
		at = at[:i]
	}
}

// inText is where a place of an expression is in the file. An expression that the file spells otherwise than it reads (escapes, folded
// lines) keeps the position of its beginning, and the message gives the place within it.
func (d *decoder) inText(begin position, p place, msg string) (position, string) {
	if spelled := strings.Split(p.text, "\n"); p.line <= len(spelled) && spelled[p.line-1] != "" {
		first := begin.line - d.before - 1 + p.line - 1
		for row := first; row <= first+1 && row < len(d.lines); row++ { // a block begins on the line after its key
			line, from := []rune(d.lines[row]), 0
			if row == begin.line-d.before-1 {
				from = min(begin.column-1, len(line))
			}
			if before, _, ok := strings.Cut(string(line[from:]), spelled[p.line-1]); ok {
				return position{d.before + row + 1, from + len([]rune(before)) + p.column}, msg
			}
		}
	}
	return begin, fmt.Sprintf("%s (at %d:%d of the expression)", msg, p.line, p.column)
}

func (d *decoder) decodePolicy(body ast.Node, p *Policy) {
	d.decode("", body, reflect.ValueOf(p).Elem())
}

var (
	textType    = reflect.TypeFor[encoding.TextUnmarshaler]()
	signalsType = reflect.TypeFor[Signals]()
)

func (d *decoder) decode(path string, n ast.Node, v reflect.Value) {
	if path != "" || d.at[""] == (position{}) {
		d.at[path] = d.where(n)
	}
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode:
		d.fail(path, "anchors and aliases are not read; write it out")
		return
	case *ast.TagNode:
		d.fail(path, "YAML tags are not read; remove it")
		return
	case *ast.NullNode, nil:
		d.fail(path, "is empty")
		return
	}
	if v.CanAddr() && v.Addr().Type().Implements(textType) {
		d.text(path, n, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(path, n, v.Elem())
	case reflect.Struct:
		d.structure(path, n, v)
	case reflect.Map:
		d.labels(path, n, v)
	case reflect.Slice:
		d.list(path, n, v)
	case reflect.String:
		if s, ok := scalar(n); ok {
			v.SetString(s)
			return
		}
		d.wrong(path, n, "a string")
	case reflect.Int:
		i, ok := n.(*ast.IntegerNode)
		if ok {
			if x, err := strconv.ParseInt(i.GetToken().Value, 10, 32); err == nil {
				v.SetInt(x)
				return
			}
		}
		d.wrong(path, n, "a whole number")
	case reflect.Float64:
		switch n.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
			if x, err := strconv.ParseFloat(n.GetToken().Value, 64); err == nil {
				v.SetFloat(x)
				return
			}
		}
		d.wrong(path, n, "a number")
	case reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.wrong(path, n, "true or false")
			return
		}
		v.SetBool(b.Value)
	default:
		panic(fmt.Sprintf("policy: field %s has type %s, which the parser does not know", path, v.Type()))
	}
}

// scalar gives a string's text. A bare off or on is the word itself, as YAML 1.2 has it.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.BoolNode:
		raw := n.GetToken().Value
		return raw, raw == "off" || raw == "on"
	}
	return "", false
}

// short is as much of a text as a line of faults has room for: a file that is no policy at all may be one long string.
func short(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

// wrong says what was wanted and what stands there.
func (d *decoder) wrong(path string, n ast.Node, want string) {
	got := "a list"
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		got = "a mapping"
	case *ast.SequenceNode:
	case *ast.StringNode:
		got = strconv.Quote(short(n.Value))
	default:
		got = n.GetToken().Value
		if want == "a string" {
			got += " (quote it)"
		}
	}
	d.fail(path, fmt.Sprintf("must be %s, not %s", want, got))
}

func (d *decoder) text(path string, n ast.Node, v reflect.Value) {
	s, ok := scalar(n)
	if !ok {
		switch n.(type) {
		case *ast.IntegerNode, *ast.FloatNode:
			s = n.GetToken().Value // a number without unit: its own parser says it best
		default:
			d.wrong(path, n, "a string")
			return
		}
	}
	if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)); err != nil {
		d.fail(path, err.Error())
	}
}

func (d *decoder) list(path string, n ast.Node, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		if v.Type() == signalsType {
			if s, ok := scalar(n); ok {
				v.Set(reflect.ValueOf(Signals{s}))
				return
			}
		}
		d.wrong(path, n, "a list")
		return
	}
	out := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		d.decode(fmt.Sprintf("%s[%d]", path, i), item, out.Index(i))
	}
	v.Set(out)
}

func (d *decoder) labels(path string, n ast.Node, v reflect.Value) {
	out := reflect.MakeMap(v.Type())
	d.eachKey(path, n, func(key, sub string, val ast.Node) {
		e := reflect.New(v.Type().Elem()).Elem()
		d.decode(sub, val, e)
		out.SetMapIndex(reflect.ValueOf(key), e)
	})
	v.Set(out)
}

func (d *decoder) structure(path string, n ast.Node, v reflect.Value) {
	fields := map[string]int{}
	var names []string
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			fields[name] = i
			names = append(names, name)
		}
	}
	d.eachKey(path, n, func(key, sub string, val ast.Node) {
		i, ok := fields[key]
		if !ok {
			hint := suggest(key, names)
			if hint == "" {
				hint = "; known here: " + strings.Join(names, ", ")
			}
			d.fail(sub, fmt.Sprintf("unknown field %q%s", key, hint))
			return
		}
		d.decode(sub, val, v.Field(i))
	})
}

// eachKey walks a mapping. A key's own position stands for its value until the value has one, so that a fault of an unknown or
// empty field points at the name.
func (d *decoder) eachKey(path string, n ast.Node, f func(key, sub string, val ast.Node)) {
	var pairs []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		pairs = n.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	default:
		d.wrong(path, n, "a mapping")
		return
	}
	seen := map[string]bool{}
	for _, kv := range pairs {
		key, ok := kv.Key.(ast.Node).(*ast.StringNode)
		if !ok {
			p := d.where(kv.Key)
			d.faults = append(d.faults, &Error{File: d.file, Line: p.line, Column: p.column, Path: path,
				Msg: fmt.Sprintf("key %q must be a plain string", kv.Key.GetToken().Value)})
			continue
		}
		sub := key.Value
		if path != "" {
			sub = path + "." + key.Value
		}
		d.at[sub] = d.where(key)
		if seen[key.Value] {
			d.fail(sub, "is given twice")
			continue
		}
		seen[key.Value] = true
		if _, empty := kv.Value.(*ast.NullNode); empty || kv.Value == nil {
			d.fail(sub, "is empty; give it a value or remove it")
			continue
		}
		f(key.Value, sub, kv.Value)
	}
}
