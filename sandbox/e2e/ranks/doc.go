// Package ranks tests, on a real control plane with real ranks, agents and a gateway, that a rank which falls behind its peers is
// named, and that nobody is named for what a job does by itself.
package ranks
