package bench

import (
	"math"
	"math/rand/v2"
)

// Fault is one shape of injected fault.
type Fault struct {
	Name    string
	Factor  float64 // of each step's time
	Seconds float64 // on the slowed clock
	Ramp    bool    // from 1 to Factor over Seconds
	Stall   bool    // one step takes Seconds more
}

// Faults of the benchmark.
var Faults = []Fault{
	{Name: "+20% 15s", Factor: 1.2, Seconds: 15},
	{Name: "+50% 15s", Factor: 1.5, Seconds: 15},
	{Name: "-20% 15s", Factor: 0.8, Seconds: 15},
	{Name: "x3 15s", Factor: 3, Seconds: 15},
	{Name: "stall 5s", Seconds: 5, Stall: true},
	{Name: "drift +40% 45s", Factor: 1.4, Seconds: 45, Ramp: true},
}

// Subtle is the fault that only siblings must find.
var Subtle = Fault{Name: "+5% 30s", Factor: 1.05, Seconds: 30}

// Injected is a run with one fault: rows with the same indices, whole milliseconds, later steps delayed.
type Injected struct {
	Run        *TrainingRun
	MS         []float64
	First, End int // rows [First, End)
	Fault      Fault
}

// inject puts a fault at row at. ok is false where the run ends before the fault does.
func inject(r *TrainingRun, f Fault, at int) (in Injected, ok bool) {
	in = Injected{Run: r, MS: make([]float64, len(r.Rows)), First: at, Fault: f}
	for i, row := range r.Rows {
		in.MS[i] = row.MS
	}
	if f.Stall {
		if math.IsNaN(in.MS[at]) || r.Rows[at].Eval {
			return in, false
		}
		in.MS[at] += f.Seconds * 1000
		in.End = at + 1
		return in, true
	}
	spent := 0.0
	for i := at; i < len(r.Rows); i++ {
		if spent >= f.Seconds*1000 {
			in.End = i
			return in, true
		}
		if r.Rows[i].Eval || math.IsNaN(in.MS[i]) {
			continue
		}
		k := f.Factor
		if f.Ramp {
			k = 1 + (f.Factor-1)*spent/(f.Seconds*1000)
		}
		in.MS[i] = math.Max(1, math.Round(in.MS[i]*k))
		spent += in.MS[i]
	}
	return in, false
}

// place draws a row for a fault: away from the start, with room to its end, and where away is given, so many seconds from any
// change of the schedule.
func place(r *TrainingRun, f Fault, away float64, rng *rand.Rand) (Injected, bool) {
	clock := make([]float64, len(r.Rows)+1)
	for i, row := range r.Rows {
		clock[i+1] = clock[i]
		if !row.Eval && !math.IsNaN(row.MS) {
			clock[i+1] += row.MS / 1000
		}
	}
	for range 60 {
		at := 60 + rng.IntN(max(1, len(r.Rows)-60))
		if at >= len(r.Rows) || clock[at] < clock[20]+8 {
			continue
		}
		in, ok := inject(r, f, at)
		if !ok || clock[len(r.Rows)]-clock[in.End] < 3 {
			continue
		}
		if away > 0 && !clear(r, clock, in, away) {
			continue
		}
		return in, true
	}
	return Injected{}, false
}

func clear(r *TrainingRun, clock []float64, in Injected, away float64) bool {
	for _, c := range r.Changes {
		if clock[c] > clock[in.First]-away && clock[c] < clock[in.End]+away {
			return false
		}
	}
	return true
}
