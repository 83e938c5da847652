// Package dashboards holds Pitcrew's Grafana dashboards as the JSON that Grafana imports. They are made by package build and committed;
// the tests compare the two.
package dashboards

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

//go:embed boards/*.json
var files embed.FS

// Board is one dashboard.
type Board struct {
	UID         string          `json:"uid"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Panels      int             `json:"panels"`
	JSON        json.RawMessage `json:"-"`
}

// order in which boards are listed: from the fleet to its parts.
var order = []string{"fleet", "node", "job", "fabric", "xid", "incidents", "placement", "utilization", "self", "tenant"}

// All returns the boards in the order in which a reader meets them.
func All() ([]Board, error) {
	names, err := fs.Glob(files, "boards/*.json")
	if err != nil {
		return nil, err
	}
	var all []Board
	for _, name := range names {
		raw, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var file struct {
			UID, Title, Description string
			Panels                  []struct{ Type string }
		}
		if err := json.Unmarshal(raw, &file); err != nil {
			return nil, fmt.Errorf("%s: %w", path.Base(name), err)
		}
		b := Board{UID: file.UID, Title: file.Title, Description: file.Description, JSON: raw}
		for _, p := range file.Panels {
			if p.Type != "row" {
				b.Panels++
			}
		}
		all = append(all, b)
	}
	slices.SortStableFunc(all, func(x, y Board) int { return rank(x) - rank(y) })
	return all, nil
}

func rank(b Board) int {
	if at := slices.Index(order, strings.TrimPrefix(b.UID, "pitcrew-")); at >= 0 {
		return at
	}
	return len(order)
}

// Find returns a board by its UID, or by the UID without pitcrew-.
func Find(name string) (Board, error) {
	all, err := All()
	if err != nil {
		return Board{}, err
	}
	var known []string
	for _, b := range all {
		if b.UID == name || b.UID == "pitcrew-"+name {
			return b, nil
		}
		known = append(known, strings.TrimPrefix(b.UID, "pitcrew-"))
	}
	return Board{}, fmt.Errorf("no dashboard %q: there are %s", name, strings.Join(known, ", "))
}
