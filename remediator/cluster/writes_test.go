package cluster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// notTheCluster are the calls that create nothing: a review is a question in the form of a POST.
var notTheCluster = []string{"TokenReviews"}

// TestEveryWriteGoesThroughTheFence finds each call of a client that changes something, in all of the package, and wants it to be inside a
// call of write, which asks for the lease. The leader's own lease is written by its lock.
func TestEveryWriteGoesThroughTheFence(t *testing.T) {
	changing := []string{"Create", "Update", "UpdateStatus", "Patch", "Apply", "ApplyStatus", "Delete", "DeleteCollection", "EvictV1", "Evict", "Post", "Put"}
	set := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || slices.Contains(notTheLeader, name) {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "write" {
				ast.Inspect(call, func(n ast.Node) bool {
					if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(changing, sel.Sel.Name) {
						found++
					}
					return true
				})
				return false
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(changing, sel.Sel.Name) {
				return true
			}
			if allowed(sel.X) {
				return true
			}
			t.Errorf("%s: %s is not inside c.write, which asks whether the lease still holds", set.Position(call.Pos()), sel.Sel.Name)
			return true
		})
	}
	if found < 10 {
		t.Errorf("only %d writes were found; the test looks for the wrong thing", found)
	}
}

// notTheLeader are files that a person's own command uses, with that person's rights.
var notTheLeader = []string{"lift.go"}

func allowed(x ast.Expr) (yes bool) {
	ast.Inspect(x, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && (slices.Contains(notTheCluster, id.Name) || id.Name == "lock" || id.Name == "slices" || id.Name == "LeaseLock") {
			yes = true
		}
		return true
	})
	return yes
}
