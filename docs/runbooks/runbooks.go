// Package runbooks holds the runbook pages and the address at which people read them.
//
// It promises one rule for addresses: an alert NAME has its page at URL(base, NAME), whether base is the repository, Pitcrew's own page
// (`/runbooks/`) or a copy elsewhere. It does not render the pages.
package runbooks

import (
	"embed"
	"io/fs"
	"slices"
	"strings"
)

// DefaultBase is where the pages are if nothing else is set. Rule files carry it; the chart replaces it by runbooks.baseURL.
const DefaultBase = "https://github.com/pitcrew/pitcrew/blob/main/docs/runbooks/"

// extension of the pages.
const extension = ".md"

//go:embed *.md
var pages embed.FS

// URL is the address of an alert's page. An empty base is DefaultBase.
func URL(base, name string) string {
	if base == "" {
		base = DefaultBase
	}
	return strings.TrimSuffix(base, "/") + "/" + name + extension
}

// Page is the Markdown of a page by its name, with or without its extension. The error wraps fs.ErrNotExist if there is none.
func Page(name string) ([]byte, error) {
	return pages.ReadFile(strings.TrimSuffix(name, extension) + extension)
}

// Names are the names of all pages, sorted.
func Names() (names []string) {
	files, _ := fs.Glob(pages, "*"+extension) // the pattern is well-formed
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f, extension))
	}
	slices.Sort(names)
	return names
}
