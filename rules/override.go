package rules

import (
	"fmt"
	"maps"
	"os"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// LoadOverride is Override with a file read from disk.
func (t *Tables) LoadOverride(path string) (*Tables, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("rules override: %w", err)
	}
	return t.Override(path, data)
}

// Override returns new tables with the rows of a YAML file laid over t's. A row
// names its code (or its key) and the columns to change; the others stay. A
// code that t lacks is added and then needs every required column:
//
//	xid:
//	- {code: 31, severity: critical, advice: reset-gpu, note: "our own finding"}
//	sxid:
//	- {code: 20034, advice: reboot-node}
//	recovery:
//	- {action: Drain P2P, severity: info}
//
// name stands for the file in errors, which give line and column. Unknown
// tables, columns and words are errors, and so is a code named twice.
func (t *Tables) Override(name string, data []byte) (*Tables, error) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, fmt.Errorf("rules override %s: %w", name, err)
	}
	out := &Tables{xid: maps.Clone(t.xid), sxid: maps.Clone(t.sxid), nvlink5: maps.Clone(t.nvlink5),
		recovery: maps.Clone(t.recovery), signal: maps.Clone(t.signal)}
	tables := map[string]func(ast.Node) error{
		"xid": overrider(out.xid, xidColumns, func(r XID) int { return r.Code }, []string{"code"}, false,
			func(r *XID, added bool) {
				r.Known, r.Overridden = true, true
				if added {
					r.Role, r.AppCaused = orWord(r.Role, Cause), orWord(r.AppCaused, AppUnknown)
				}
			}),
		"sxid": overrider(out.sxid, sxidColumns, func(r SXid) int { return r.Code }, []string{"code"}, false,
			func(r *SXid, added bool) {
				r.Known, r.Overridden = true, true
				if added {
					r.AdviceNonFatal = orWord(r.AdviceNonFatal, r.Advice)
				}
			}),
		"nvlink5": overrider(out.nvlink5, nvlink5Columns, NVLink5.key, []string{"xid", "unit", "intrinfo_before_575", "error_status"}, false,
			func(r *NVLink5, _ bool) { r.Overridden = true }),
		"recovery": overrider(out.recovery, recoveryColumns, func(r Recovery) string { return r.Action }, []string{"action"}, false,
			func(r *Recovery, _ bool) { r.Known, r.Overridden = true, true }),
		"signal": overrider(out.signal, signalColumns, func(r Signal) signalKey { return signalKey{r.Kind, r.Name} }, []string{"kind", "name"}, true,
			func(r *Signal, _ bool) { r.Overridden = true }),
	}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		entries, err := mapping(doc.Body)
		if err != nil {
			return nil, fmt.Errorf("rules override %s:%w", name, err)
		}
		for _, e := range entries {
			apply, ok := tables[e.Key.GetToken().Value]
			if !ok {
				return nil, fmt.Errorf("rules override %s:%w", name, at(e.Key, "unknown table %q; use xid, sxid, nvlink5, recovery or signal", e.Key.GetToken().Value))
			}
			if err := apply(e.Value); err != nil {
				return nil, fmt.Errorf("rules override %s:%w", name, err)
			}
		}
	}
	if err := out.finish(); err != nil {
		return nil, fmt.Errorf("rules override %s: %w", name, err)
	}
	return out, nil
}

func orWord[W ~string](w, otherwise W) W {
	if w == "" {
		return otherwise
	}
	return w
}

// overrider returns the function that lays a sequence of YAML rows over rows.
// A fixed table takes no new rows.
func overrider[K comparable, R any](rows map[K]R, columns []column[R], key func(R) K, keys []string, fixed bool, done func(*R, bool)) func(ast.Node) error {
	seen := make(map[K]bool) // in all documents of the file
	return func(node ast.Node) error {
		seq, ok := node.(*ast.SequenceNode)
		if !ok {
			return at(node, "a list of rows is wanted")
		}
		for _, item := range seq.Values {
			cells, err := mapping(item)
			if err != nil {
				return err
			}
			// The key first: it says which row the other cells are laid over.
			var row R
			if err := fill(&row, item, cells, columns, keys); err != nil {
				return err
			}
			k := key(row)
			if seen[k] {
				return at(item, "%v is there twice", k)
			}
			seen[k] = true
			old, known := rows[k]
			if known {
				row = old
			}
			given, err := fillAll(&row, cells, columns)
			if err != nil {
				return err
			}
			if fixed && !known {
				return at(item, "%v is not in the table, and no line would be known by it", k)
			}
			done(&row, !known)
			for _, c := range columns {
				if !known && c.required && !given[c.name] && !defaulted[c.name] {
					return at(item, "%v is not in the table: a new row needs %s", k, c.name)
				}
			}
			rows[k] = row
		}
		return nil
	}
}

// defaulted are the required columns that a new row may leave out.
var defaulted = map[string]bool{"role": true, "app_caused": true, "advice_nonfatal": true}

func fill[R any](row *R, item ast.Node, cells []*ast.MappingValueNode, columns []column[R], keys []string) error {
	for _, k := range keys {
		found := false
		for _, cell := range cells {
			if cell.Key.GetToken().Value == k {
				found = true
				if err := setCell(row, cell, columns); err != nil {
					return err
				}
			}
		}
		if !found {
			return at(item, "a row needs %s", k)
		}
	}
	return nil
}

func fillAll[R any](row *R, cells []*ast.MappingValueNode, columns []column[R]) (map[string]bool, error) {
	given := make(map[string]bool, len(cells))
	for _, cell := range cells {
		if err := setCell(row, cell, columns); err != nil {
			return nil, err
		}
		given[cell.Key.GetToken().Value] = true
	}
	return given, nil
}

func setCell[R any](row *R, cell *ast.MappingValueNode, columns []column[R]) error {
	name := cell.Key.GetToken().Value
	for _, c := range columns {
		if c.name != name {
			continue
		}
		value, ok := scalar(cell.Value)
		if !ok {
			return at(cell.Value, "%s: one value is wanted", name)
		}
		if c.required && value == "" {
			return at(cell.Value, "%s is empty", name)
		}
		if err := c.set(row, value); err != nil {
			return at(cell.Value, "%s: %w", name, err)
		}
		return nil
	}
	return at(cell.Key, "unknown column %q", name)
}

// scalar returns a cell's text, as it is written: a version or a register is no number here.
func scalar(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
		return node.GetToken().Value, true
	}
	return "", false
}

// mapping returns the entries of a YAML mapping, which the parser gives in two shapes.
func mapping(node ast.Node) ([]*ast.MappingValueNode, error) {
	switch n := node.(type) {
	case *ast.MappingNode:
		return n.Values, nil
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, nil
	}
	return nil, at(node, "a mapping is wanted")
}

// at is an error with the place of a node, as "line:column: text".
func at(node ast.Node, format string, args ...any) error {
	pos := node.GetToken().Position
	return fmt.Errorf("%d:%d: %w", pos.Line, pos.Column, fmt.Errorf(format, args...))
}
