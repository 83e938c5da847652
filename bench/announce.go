package bench

import (
	"hash/fnv"
	"math/rand/v2"
)

// Announcement is how a hook announces the changes of a schedule.
type Announcement struct {
	Name    string
	Late    int     // steps; less than zero: early
	Missing float64 // share of the changes that are never announced
}

// Announcements of the benchmark. The first is the one of all other figures of mode Told.
var Announcements = []Announcement{
	{Name: "at the step"},
	{Name: "5 steps late", Late: 5},
	{Name: "20 steps late", Late: 20},
	{Name: "50 steps late", Late: 50},
	{Name: "5 steps early", Late: -5},
	{Name: "20 steps early", Late: -20},
	{Name: "one in five missing", Missing: 0.2},
	{Name: "5 steps late, one in five missing", Late: 5, Missing: 0.2},
	{Name: "20 steps late, one in five missing", Late: 20, Missing: 0.2},
	{Name: "50 steps late, one in five missing", Late: 50, Missing: 0.2},
	{Name: "20 steps early, one in five missing", Late: -20, Missing: 0.2},
}

// announced is the run as such a hook announces it. Only the workload changes: values, true changes and so the places of faults do not.
func announced(r *TrainingRun, a Announcement) (out *TrainingRun, missing int) {
	h := fnv.New64a()
	h.Write([]byte(r.ID))
	rng := rand.New(rand.NewPCG(Seed, h.Sum64()))
	var at []int
	for _, c := range r.Changes {
		if rng.Float64() < a.Missing {
			missing++
			continue
		}
		at = append(at, max(0, c+a.Late))
	}
	copied := *r
	copied.Workload = make([]uint32, len(r.Rows))
	w := uint32(1)
	for i := range copied.Workload {
		for len(at) > 0 && i >= at[0] {
			w, at = w+1, at[1:]
		}
		copied.Workload[i] = w
	}
	return &copied, missing
}

// AnnouncedFigures are those of one way to announce.
type AnnouncedFigures struct {
	Announced string       `json:"announced"`
	Changes   int          `json:"schedule_changes"`
	Missing   int          `json:"never_announced"`
	Hours     float64      `json:"hours"`
	Onsets    int          `json:"false_onsets"`
	PerHour   float64      `json:"false_onsets_per_hour"`
	Fault     FaultFigures `json:"fault"`
}

// announcements measures each way to announce: onsets without a fault, and the recall of the first fault.
func announcements(runs []*TrainingRun) (out []AnnouncedFigures) {
	for _, a := range Announcements {
		f := AnnouncedFigures{Announced: a.Name}
		var as []*TrainingRun
		for _, r := range runs {
			x, missing := announced(r, a)
			as = append(as, x)
			f.Changes, f.Missing = f.Changes+len(r.Changes), f.Missing+missing
		}
		var hours float64
		f.Onsets, hours = quiet(as, Told)
		f.Hours, f.PerHour = hours, float64(f.Onsets)/hours
		f.Fault = fault(Told, Faults[0], as, nil)
		out = append(out, f)
	}
	return out
}

// quiet counts onsets in runs without faults.
func quiet(runs []*TrainingRun, m Mode) (onsets int, hours float64) {
	past := refs(runs)
	for _, r := range runs {
		ps := replay(r, nil, m, 0, past[r.ID])
		hours += ps[len(ps)-1].t / 3600
		for _, p := range ps {
			if p.rise {
				onsets++
			}
		}
	}
	return onsets, hours
}
