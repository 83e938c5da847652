// Package e2e holds the tests of bad days: a remediator killed after each of its steps, a second fault in the middle of a recovery,
// agents that are upgraded, events that come late, twice or from the wrong mouth, no node to go to, a bus or an API server that is
// away.
//
// They run the whole of Pitcrew as processes on the sandbox, on real torch ranks, and judge it from outside: by the API server's
// audit log, by the training's own log, by the checkpoints on disk. Two sandboxes and, where it can be, one job on each serve all of them.
// The remediator runs from the test binary itself, because the shipped program has no way to be told to crash.
package e2e
