// Package version is what a program knows of its own build.
package version

import (
	"cmp"
	"runtime/debug"
)

// Template is how each program says it.
const Template = "{{.CommandPath}} {{.Version}}\n"

// revision is what git calls the source; the Makefile sets it.
var revision string

// Of is the program's: git's name of its source, or else the module's version and commit as the build recorded them; and Go's version.
func Of() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cmp.Or(revision, "unknown")
	}
	out := cmp.Or(revision, info.Main.Version)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && revision == "" {
			out += " " + s.Value
		}
	}
	return out + " " + info.GoVersion
}
