package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Load reads policies from files and folders and returns them by rising order. Of a folder it takes *.yaml, *.yml and *.json, not
// its folders, and skips hidden names, so that a mounted ConfigMap is read once. Any fault anywhere means no policies: half a
// rule book is not one. Every fault is reported.
func Load(paths ...string) ([]Policy, error) {
	var files []string
	var errs []error
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			errs = append(errs, fmt.Errorf("policies: %w", err))
			continue
		}
		if !info.IsDir() {
			files = append(files, p)
			continue
		}
		names, err := namesIn(os.DirFS(p))
		if err != nil {
			errs = append(errs, fmt.Errorf("policies: %w", err))
		}
		if err == nil && len(names) == 0 {
			errs = append(errs, fmt.Errorf("policies: %s holds no .yaml, .yml or .json file", p))
		}
		for _, n := range names {
			files = append(files, filepath.Join(p, n))
		}
	}
	return assemble(files, os.ReadFile, errs)
}

// LoadFS is Load of every policy file at the root of a file system, such as the shipped ones.
func LoadFS(fsys fs.FS) ([]Policy, error) {
	names, err := namesIn(fsys)
	if err != nil {
		return nil, fmt.Errorf("policies: %w", err)
	}
	return assemble(names, func(n string) ([]byte, error) { return fs.ReadFile(fsys, n) }, nil)
}

func namesIn(fsys fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		ext := path.Ext(e.Name())
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			continue
		}
		names = append(names, e.Name())
	}
	return names, nil
}

func assemble(files []string, read func(string) ([]byte, error), errs []error) ([]Policy, error) {
	var all []Policy
	for _, f := range files {
		data, err := read(f)
		if err != nil {
			errs = append(errs, fmt.Errorf("policies: %w", err))
			continue
		}
		ps, faults := parse(f, data)
		if len(faults) > 0 {
			errs = append(errs, join(faults))
		}
		all = append(all, ps...) // of a faulty file, too: what it shares with another file is a fault as well, and is told in the same go
	}
	if err := Together(all); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	slices.SortFunc(all, func(a, b Policy) int { return a.Spec.Order - b.Spec.Order })
	return all, nil
}

// Together reports what is wrong with policies as a set: two of one order, or of one name. Both files are named.
func Together(ps []Policy) error {
	var errs []error
	for i, p := range ps {
		for _, q := range ps[:i] {
			if p.Spec.Order == q.Spec.Order {
				errs = append(errs, &Error{File: p.File, Line: p.Line, Column: 1, Policy: p.Metadata.Name, Path: "spec.order",
					Msg: fmt.Sprintf("%d is also the order of policy %s; which comes first must be said", p.Spec.Order, q)})
			}
			if p.Metadata.Name == q.Metadata.Name {
				errs = append(errs, &Error{File: p.File, Line: p.Line, Column: 1, Policy: p.Metadata.Name, Path: "metadata.name",
					Msg: fmt.Sprintf("is also the name of policy %s", q)})
			}
		}
	}
	return errors.Join(errs...)
}
