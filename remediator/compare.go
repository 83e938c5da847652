package remediator

import (
	"slices"
	"time"
)

// Deed is something that a person did.
type Deed struct {
	Time   time.Time `json:"time"`
	Node   string    `json:"node"`
	Action string    `json:"action"` // cordon, restart-job, …, or any word of one's own
}

// Comparison sets would-be incidents against what people did. Each is in one row at most.
type Comparison struct {
	Agree       []Pair  `json:"agree"`  // the same node, near in time, and the person did one of the actions
	Differ      []Pair  `json:"differ"` // the same node, near in time, another action, or a guard stood against it
	OnlyPitcrew []Would `json:"only_pitcrew"`
	OnlyPeople  []Deed  `json:"only_people"`
}

// Pair is an incident and a deed that mean the same.
type Pair struct {
	Pitcrew Would `json:"pitcrew"`
	People  Deed  `json:"people"`
}

// Compare joins each deed with the nearest incident of its node that is left, those of the same action first. A pair is at most
// within apart.
func Compare(would []Would, done []Deed, within time.Duration) *Comparison {
	c := &Comparison{Agree: []Pair{}, Differ: []Pair{}, OnlyPitcrew: []Would{}, OnlyPeople: []Deed{}}
	taken := map[int]bool{}
	left := done
	join := func(into *[]Pair, fits func(Would, Deed) bool) {
		var still []Deed
		for _, d := range left {
			best := -1
			for k, w := range would {
				if !taken[k] && w.Node == d.Node && apart(w, d) <= within && fits(w, d) && (best < 0 || apart(w, d) < apart(would[best], d)) {
					best = k
				}
			}
			if best < 0 {
				still = append(still, d)
				continue
			}
			taken[best] = true
			*into = append(*into, Pair{would[best], d})
		}
		left = still
	}
	join(&c.Agree, func(w Would, d Deed) bool { return w.Refused == "" && slices.Contains(w.Actions, d.Action) })
	join(&c.Differ, func(Would, Deed) bool { return true })
	c.OnlyPeople = append(c.OnlyPeople, left...)
	for k, w := range would {
		if !taken[k] {
			c.OnlyPitcrew = append(c.OnlyPitcrew, w)
		}
	}
	return c
}

func apart(w Would, d Deed) time.Duration { return w.Time.Sub(d.Time).Abs() }
