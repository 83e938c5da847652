package sandbox

import "strings"

// Marked lists the living processes of units that contain part.
func Marked(s *Sandbox, part string) []int {
	var pids []int
	for _, n := range s.nodes {
		pids = append(pids, s.procs.find(n.unit()+"pod/"+part)...)
	}
	return pids
}

// ID is the sandbox's mark.
func ID(s *Sandbox) string { return s.procs.id }

// AllMarked lists the living processes of a sandbox by its id.
func AllMarked(id string) []int { return findMarked(strings.TrimSpace(id), "") }
