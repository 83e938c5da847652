// Package cluster is Pitcrew's view of the Kubernetes API: a small, typed one, and the only place in the product that imports client-go.
//
// It promises that
//   - reading is from watches and never waits for the API server, except where a method says "live";
//   - every write carries the UID and resourceVersion it was decided on, so a stale decision changes nothing, and a write whose answer
//     was lost can be repeated without doing anything twice;
//   - every write is announced to Options.Audit before it is sent and again with its result;
//   - it undoes only what it did: other people's cordons, taints, finalizers and pods stay as they are;
//   - an error says whether trying again can help (ErrRetry), or which of the typed outcomes stands against it.
//
// It decides nothing: which node is bad, which one is better and what to restart is its caller's business.
package cluster
