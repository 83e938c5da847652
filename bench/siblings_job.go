package bench

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/job"
	"github.com/pitcrew/pitcrew/event"
)

// GatewayFigures are of what a gateway says of the recorded runs of each record, one after another as they were made, each a job of one
// rank that tells its record as its workload: nothing is known beforehand, and each run is compared with those before it alone.
type GatewayFigures struct {
	Runs   int      `json:"runs_with_an_earlier_sibling"`
	Hours  float64  `json:"hours"`
	False  int      `json:"false_slowdowns"`
	Driver int      `json:"slow_drivers_or_frameworks_without_cause"`
	Fault  string   `json:"fault_in_the_last_run_of_each_record"` // at its middle
	N      int      `json:"n"`
	Recall Interval `json:"recall"` // said from its first long step until a second after its last
	Delay  float64  `json:"delay_p50_s"`
}

// Gateway measures runs against their siblings through the engine of a gateway.
func Gateway(runs []*TrainingRun) (*GatewayFigures, error) {
	byRecord := map[string][]*TrainingRun{}
	for _, r := range runs {
		byRecord[r.Record] = append(byRecord[r.Record], r)
	}
	f := Faults[0]
	out := &GatewayFigures{Fault: f.Name}
	tries, hits := map[string]float64{}, map[string]float64{}
	var delays []float64
	for record, rs := range byRecord {
		for _, faulty := range []bool{false, true} {
			store, err := class.New(class.Config{})
			if err != nil {
				return nil, err
			}
			g := gateway{e: job.New(job.Options{Cluster: "c", Gateway: "g", Classes: store}), now: time.Unix(1_700_000_000, 0)}
			for k, r := range rs {
				in, has := Injected{}, false
				if faulty && k == len(rs)-1 && k > 0 {
					at := slices.IndexFunc(r.Rows, func(row Row) bool { return !row.Eval && row.Step >= r.Rows[len(r.Rows)/2].Step })
					in, has = inject(r, f, at)
				}
				said := g.run(r, in.MS)
				switch {
				case has:
					out.N++
					tries[record]++
					end := said.at[in.End-1] + 1
					if i := slices.IndexFunc(said.slow, func(t float64) bool { return t >= said.at[in.First-1] && t <= end }); i >= 0 {
						hits[record]++
						delays = append(delays, said.slow[i]-said.at[in.First-1])
					}
				case !faulty && k > 0:
					out.Runs++
					out.Hours += said.at[len(said.at)-1] / 3600
					out.False += len(said.slow)
				}
				if !faulty {
					out.Driver += said.classes
				}
			}
		}
	}
	out.Recall = bootstrap(hits, tries)
	slices.Sort(delays)
	out.Delay = finite(quantile(delays, 0.5))
	return out, nil
}

type gateway struct {
	e   *job.Engine
	now time.Time
}

// account is what a gateway said of one run.
type account struct {
	at      []float64 // s since its start, by row
	slow    []float64 // when it was called slow
	classes int
}

func (g *gateway) run(r *TrainingRun, ms []float64) (out account) {
	rank, attempt, began := 0, 0, g.now
	t := event.Target{PodUID: "pod-" + r.ID, Node: "n", Rank: &rank, WorldSize: 1, Attempt: &attempt}
	work := job.Work{Workload: "model=" + strings.NewReplacer(";", ",", "=", ",").Replace(r.Record), GPU: "H100", Driver: "1", Framework: "torch"}
	nan, tick := math.NaN(), g.now
	for i, row := range r.Rows {
		v := row.MS
		if ms != nil {
			v = ms[i]
		}
		if !row.Eval && !math.IsNaN(v) && row.Step > warmupSteps {
			g.now = g.now.Add(time.Duration(v * float64(time.Millisecond)))
			found := g.e.Add(g.now, job.Sample{
				Job: r.ID, Target: t, Step: int64(row.Step), Time: g.now, Duration: v / 1000, Wait: nan, Compute: nan, Rate: nan, Launch: nan,
			})
			g.e.Tell(g.now, r.ID, t, work)
			if g.now.Sub(tick) >= time.Second {
				tick = g.now
				found = append(found, g.e.Tick(g.now)...)
			}
			for _, x := range found {
				switch {
				case !x.Active || x.ConditionOnly: // what stands is told again to those who list it
				case x.Event.Data.Cause.Kind == "class":
					out.classes++
				default:
					out.slow = append(out.slow, g.now.Sub(began).Seconds())
				}
			}
		}
		out.at = append(out.at, g.now.Sub(began).Seconds())
	}
	g.now = g.now.Add(time.Hour)
	for _, x := range g.e.Tick(g.now) {
		if x.Active && !x.ConditionOnly {
			out.classes++
		}
	}
	return out
}
