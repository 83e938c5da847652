package incident

import (
	"errors"
	"testing"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestARanksFaultActsOnlyIfLiveStateBearsItOut(t *testing.T) {
	steps := bus.RankStatus{Connected: true, Section: "step", Exit: "running", ProcState: "R", StepAgeS: 0.1, P99StepS: 0.1, HeartbeatAgeS: 0.1}
	waits, stopped, silent := steps, steps, steps
	waits.StepAgeS = 2
	stopped.ProcState, stopped.HeartbeatAgeS, stopped.StepAgeS = "T", 2, 2
	silent.ProcState, silent.HeartbeatAgeS, silent.StepAgeS = "S", 1.5, 2
	slow := waits
	slow.P99StepS = 1 // two seconds are nothing to it
	gone, left, lost := steps, steps, steps
	saves := waits
	saves.Section = "checkpoint"
	gone.Connected, gone.Exit = false, "exception"
	left.Connected = false // its socket is closed, its ring says nothing of it
	lost.Exit = "exception"
	alone := silent
	alone.HeartbeatAgeS = 2.5
	for name, c := range map[string]struct {
		signal     string
		rank, peer *bus.RankStatus
		attempt    int // of the record
		pod        string
		unread     bool // the agent cannot read the pod's rings
		holds      bool
	}{
		"hung, and the kernel says that it is stopped":      {"rank/hung", &stopped, &steps, 1, "pod-0", false, true},
		"hung, and a peer waits for it":                     {"rank/hung", &silent, &waits, 1, "pod-0", false, true},
		"hung, and its peers step":                          {"rank/hung", &silent, &steps, 1, "pod-0", false, false},
		"hung, and its peer is as slow as ever":             {"rank/hung", &silent, &slow, 1, "pod-0", false, false},
		"hung, and it beats again though a peer waits":      {"rank/hung", &waits, &waits, 1, "pod-0", false, false},
		"hung, and it cannot be read":                       {"rank/hung", &silent, &waits, 1, "pod-0", true, false},
		"hung, and it has left no ring":                     {"rank/hung", nil, &waits, 1, "pod-0", false, false},
		"hung, and its peer saves":                          {"rank/hung", &silent, &saves, 1, "pod-0", false, false},
		"hung, without a peer, for long":                    {"rank/hung", &alone, nil, 1, "pod-0", false, true},
		"hung, without a peer, for a moment":                {"rank/hung", &silent, nil, 1, "pod-0", false, false},
		"dead, and its socket is closed":                    {"rank/dead", &gone, &steps, 1, "pod-0", false, true},
		"dead, and nobody knows but that its socket closed": {"rank/dead", &left, &steps, 1, "pod-0", false, true},
		"dead, and its ring says how though it still hangs": {"rank/dead", &lost, &steps, 1, "pod-0", false, true},
		"dead, and it answers and runs":                     {"rank/dead", &steps, &steps, 1, "pod-0", false, false},
		"dead, and its rings cannot be read":                {"rank/dead", &steps, &steps, 1, "pod-0", true, true},
		"dead, and it has left no ring":                     {"rank/dead", nil, &steps, 1, "pod-0", false, true},
		"dead, of an attempt that is over":                  {"rank/dead", &gone, &steps, 2, "pod-0", false, false},
		"dead, of a pod that was replaced":                  {"rank/dead", &gone, &steps, 1, "pod-9", false, false},
		"a GPU's fault, which needs no witness":             {"gpu/lost", &steps, &steps, 2, "pod-9", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			zero, one := 0, 1
			g := cluster.Gang{Members: []cluster.Member{{PodUID: "pod-0"}, {PodUID: "pod-1"}}}
			live := checkpoint.Gang{Attempt: 1, Ranks: map[int]bus.RankStatus{}}
			for rank, r := range []*bus.RankStatus{c.rank, c.peer} {
				if r != nil {
					live.Ranks[rank] = *r
				}
			}
			missing := map[string]error{}
			if c.unread {
				missing["pod-0"] = errors.New("no such pod")
			}
			no := confirmed(Fault{Signal: c.signal, Rank: &zero, Attempt: &one, PodUID: c.pod}, &g, live, missing, bus.Attempt{Attempt: c.attempt})
			if (no == nil) != c.holds || no != nil && no.why == "" {
				t.Errorf("refuted: %+v", no)
			}
		})
	}
}
