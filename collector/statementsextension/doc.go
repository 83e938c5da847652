// Package statementsextension follows what people say of findings: the agent's pilot for its node with a Follower, and the extension
// "statements" for a gateway.
//
// It promises that who follows is given all that people said, at once and after each change, and never a part of it; that what is
// malformed, forged, of the future or beyond the bound reaches nobody and is counted; and that without NATS what was said before holds.
//
// Over the same connection it exchanges what gateways learnt of workloads (docs/decisions/0006): each gives its own records, and takes in those of others.
package statementsextension
