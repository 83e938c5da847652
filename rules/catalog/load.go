package catalog

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

//go:embed *.yaml
var files embed.FS

// Shipped returns the records of this folder, by area and then in the order of their files.
func Shipped() ([]Record, error) { return Load(files) }

// Load reads every *.yaml file at the top of f. Each file holds one area and its records. The error joins every fault, each as
// FILE:LINE: reason.
func Load(f fs.FS) ([]Record, error) {
	names, err := fs.Glob(f, "*.yaml")
	if err != nil {
		return nil, err
	}
	var all []Record
	var faults []error
	for _, name := range names {
		raw, err := fs.ReadFile(f, name)
		if err != nil {
			return nil, fmt.Errorf("catalog: %w", err)
		}
		records, bad := read(name, raw)
		all, faults = append(all, records...), append(faults, bad...)
	}
	faults = append(faults, twice(all)...)
	faults = append(faults, linked(all)...)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	rank := map[string]int{}
	for i, a := range Areas {
		rank[a.Name] = i
	}
	slices.SortStableFunc(all, func(x, y Record) int { return rank[x.Area] - rank[y.Area] })
	return all, nil
}

// twice reports ids and alerts that several records have.
func twice(all []Record) (faults []error) {
	first := map[string]*Record{}
	for i := range all {
		r := &all[i]
		for _, key := range []string{"id " + r.ID, "alert " + r.Alert} {
			if old := first[key]; old != nil {
				faults = append(faults, fmt.Errorf("%s:%d: %s is taken by %s:%d", r.File, r.Line, key, old.File, old.Line))
				continue
			}
			first[key] = r
		}
	}
	return faults
}

// read parses one file. A record that is wrong does not hide the faults of the others.
func read(name string, raw []byte) (out []Record, faults []error) {
	file, err := parser.ParseBytes(raw, 0)
	if err != nil {
		return nil, []error{fmt.Errorf("%s: %s", name, oneLine(err))}
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, []error{fmt.Errorf("%s:1: one document with area and records is required", name)}
	}
	top, ok := file.Docs[0].Body.(*ast.MappingNode)
	if !ok {
		return nil, []error{fmt.Errorf("%s:1: area and records are required", name)}
	}
	area := ""
	var records *ast.SequenceNode
	for _, e := range top.Values {
		line := e.Key.GetToken().Position.Line
		switch key := e.Key.GetToken().Value; key {
		case "area":
			area = e.Value.GetToken().Value
			if !slices.ContainsFunc(Areas, func(a struct{ Name, Title string }) bool { return a.Name == area }) {
				faults = append(faults, fmt.Errorf("%s:%d: unknown area %q", name, line, area))
			}
		case "records":
			if records, ok = e.Value.(*ast.SequenceNode); !ok {
				faults = append(faults, fmt.Errorf("%s:%d: records must be a list", name, line))
			}
		default:
			faults = append(faults, fmt.Errorf("%s:%d: unknown field %q; use area and records", name, line, key))
		}
	}
	if area == "" {
		faults = append(faults, fmt.Errorf("%s:1: area is missing", name))
	}
	if records == nil {
		return nil, append(faults, fmt.Errorf("%s:1: records are missing", name))
	}
	for _, node := range records.Values {
		r := Record{Area: area, File: path.Base(name), Line: node.GetToken().Position.Line}
		if m, ok := node.(*ast.MappingNode); ok && len(m.Values) > 0 {
			r.Line = m.Values[0].Key.GetToken().Position.Line
		}
		if err := yaml.NodeToValue(node, &r, yaml.Strict(), yaml.CustomUnmarshaler(durationOf)); err != nil {
			line, reason := r.Line, oneLine(err)
			var at yaml.Error
			if errors.As(err, &at) && at.GetToken() != nil {
				line, reason = at.GetToken().Position.Line, at.GetMessage()
			}
			faults = append(faults, fmt.Errorf("%s:%d: %s", name, line, reason))
			continue
		}
		for _, reason := range r.check() {
			faults = append(faults, fmt.Errorf("%s:%d: %s: %s", name, r.Line, r.Alert, reason))
		}
		out = append(out, r)
	}
	return out, faults
}

func durationOf(d *Duration, raw []byte) (err error) {
	*d, err = parseDuration(strings.Trim(strings.TrimSpace(string(raw)), `"'`))
	return err
}

// oneLine drops the excerpt that the YAML reader adds to its errors.
func oneLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}
