// Package doctorcmd is `pitcrew doctor`: what works, what is missing, and how to fix it, on a laptop, on a cluster and on a node.
//
// It only reads. Each check is a row of a table, and answers independently of the others.
package doctorcmd

import (
	"context"
	"errors"
	"time"
)

// Where a check applies.
type place string

const (
	laptop  place = "laptop"  // where Pitcrew is built and the demo runs
	cluster place = "cluster" // by kubeconfig and NATS
	node    place = "node"    // on a GPU node itself
)

var places = []place{laptop, cluster, node}

// Grade is the outcome of a check.
type Grade string

// Grades, the worst first.
const (
	Bad     Grade = "fail"    // something will not work
	Warn    Grade = "warn"    // it works with a limit
	Unknown Grade = "unknown" // it could not be found out
	OK      Grade = "ok"
)

// Result is what a check found.
type Result struct {
	Where  place  `json:"where"`
	Check  string `json:"check"`
	Grade  Grade  `json:"grade"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // what to do about it
}

// check is one question. It returns an answer of any grade, or an error if it could not be found out.
type check struct {
	name string
	ask  func(ctx context.Context) (answer, error)
}

type answer struct {
	grade         Grade
	found, remedy string
}

func ok(found string) (answer, error)           { return answer{grade: OK, found: found}, nil }
func warn(found, remedy string) (answer, error) { return answer{Warn, found, remedy}, nil }
func bad(found, remedy string) (answer, error)  { return answer{Bad, found, remedy}, nil }

// slowest bounds each check, so that one that hangs does not hide the others.
const slowest = 10 * time.Second

// examine asks the checks of one place, one after the other.
func examine(ctx context.Context, where place, checks []check, each func(Result)) {
	for _, c := range checks {
		if ctx.Err() != nil {
			return
		}
		within, cancel := context.WithTimeout(ctx, slowest)
		a, err := c.ask(within)
		if err != nil {
			a.grade, a.found = Unknown, err.Error()
			if errors.Is(err, context.DeadlineExceeded) {
				a.found = "no answer within " + slowest.String() + ": " + a.found
			}
		}
		cancel()
		each(Result{where, c.name, a.grade, a.found, a.remedy})
	}
}
