// Package policies embeds the policies that ship with Pitcrew. All of them observe; policy.WithMode makes copies that act.
package policies

import "embed"

// Files holds the shipped policies at its root; policy.LoadFS reads them.
//
//go:embed *.yaml
var Files embed.FS
