package bench

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"

	"github.com/pitcrew/pitcrew/detector/series"
)

// Seed of every draw; each figure names it.
const Seed = 7

// Interval is a figure with the bootstrap interval over records: runs of one record are not independent.
type Interval struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low_95"`
	High  float64 `json:"high_95"`
}

// FaultFigures are those of one fault in one mode.
type FaultFigures struct {
	Fault        string            `json:"fault"`
	N            int               `json:"n"`
	Seed         uint64            `json:"seed"`
	Recall       Interval          `json:"recall"`
	DelayP50     float64           `json:"delay_p50_s"` // misses are infinite and so beyond any
	DelayP90     float64           `json:"delay_p90_s"`
	AlarmOutside float64           `json:"share_of_time_in_alarm_outside_faults"`
	Outside95    Interval          `json:"share_in_alarm_outside_interval"`
	Records      map[string][2]int `json:"hits_of_tries_by_record"`
}

// ModeFigures are those of one mode at the shipped rate.
type ModeFigures struct {
	Mode         Mode           `json:"mode"`
	Runs         int            `json:"runs"`
	Hours        float64        `json:"hours"`
	FalseOnsets  int            `json:"false_onsets"` // rises in runs without a fault; untold: informational, see changes
	PerHour      float64        `json:"false_onsets_per_run_hour"`
	UpperPerHour float64        `json:"false_onsets_per_run_hour_upper_95"`
	Changes      int            `json:"schedule_changes"`
	Warnings     int            `json:"onsets_above_information"`
	AlarmShare   float64        `json:"share_of_time_in_alarm_without_faults"`
	Faults       []FaultFigures `json:"faults"`
}

// AskedFigures compare the seen rate with the asked one.
type AskedFigures struct {
	Asked      float64  `json:"asked_per_series_hour"`
	Hours      float64  `json:"hours"`
	Onsets     int      `json:"onsets"`
	Ratio      Interval `json:"seen_over_asked"`
	MostRecord float64  `json:"most_of_any_record"`
	Above5     int      `json:"records_above_5"`
}

// Report is what `make bench-detector` writes.
type Report struct {
	Seed       uint64             `json:"seed"`
	StateBytes int                `json:"core_state_bytes_per_series"`
	NanosEach  float64            `json:"processor_ns_per_sample_in_replay"` // engine alone, one series at a time, hot
	Injections int                `json:"injections"`
	Modes      []ModeFigures      `json:"training_steps"`
	Announced  []AnnouncedFigures `json:"training_steps_announced_late_early_or_never"`
	Folds      []FoldFigures      `json:"training_steps_by_half_of_the_records"`
	Asked      []AskedFigures     `json:"asked_against_seen"`
	Peers      *PeerFigures       `json:"peers"`
	Classes    *ClassFigures      `json:"classes"`
	ColdStart  *ColdFigures       `json:"cold_start"`
	Gateway    *GatewayFigures    `json:"runs_in_order_through_a_gateway"`
	NAB        *NABFigures        `json:"numenta_half"`
}

// Quality measures the engine of single series on the training runs below dir.
func Quality(dir string) (*Report, error) {
	runs, err := LoadTraining(dir)
	if err != nil {
		return nil, err
	}
	past := refs(runs)
	r := &Report{Seed: Seed, StateBytes: series.StateSize}
	for _, m := range []Mode{Told, Siblings, Untold} {
		var rs []*TrainingRun
		for _, x := range runs {
			if m != Siblings || past[x.ID] != nil {
				rs = append(rs, x)
			}
		}
		f := mode(m, rs, past)
		for _, x := range f.Faults {
			r.Injections += x.N
		}
		r.Modes = append(r.Modes, f)
	}
	r.Announced = announcements(runs)
	r.Folds = folds(runs, past)
	for _, a := range []float64{30, 8, 1, series.AskedShipped} {
		r.Asked = append(r.Asked, asked(a, runs))
	}
	r.NanosEach = nanos(runs)
	if r.Peers, err = PeerQuality(dir); err != nil {
		return nil, err
	}
	if r.Classes, err = Classes(dir, runs); err != nil {
		return nil, err
	}
	if r.ColdStart, err = ColdStart(runs); err != nil {
		return nil, err
	}
	if r.Gateway, err = Gateway(runs); err != nil {
		return nil, err
	}
	if r.NAB, err = NABQuality(dir); err != nil {
		return nil, err
	}
	return r, nil
}

// poisson95 is the exact upper bound of the mean at n seen events, by bisection of the lower tail at 5 %.
func poisson95(n int) float64 {
	lo, hi := 0.0, float64(n)+10+5*math.Sqrt(float64(n)+1)
	for range 80 {
		mid := (lo + hi) / 2
		term, sum := math.Exp(-mid), 0.0
		for k := 0; k <= n; k++ {
			sum += term
			term *= mid / float64(k+1)
		}
		if sum > 0.05 {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

func mode(m Mode, runs []*TrainingRun, past map[string]*series.Reference) ModeFigures {
	f := ModeFigures{Mode: m, Runs: len(runs)}
	inAlarm := 0.0
	for _, r := range runs {
		last := 0.0
		f.Changes += len(r.Changes)
		for _, p := range replay(r, nil, m, 0, past[r.ID]) {
			if p.alarm {
				inAlarm += p.t - last
			}
			if p.rise {
				f.FalseOnsets++
				if p.severity > series.Info {
					f.Warnings++
				}
			}
			last = p.t
		}
		f.Hours += last / 3600
	}
	f.PerHour, f.UpperPerHour = float64(f.FalseOnsets)/f.Hours, poisson95(f.FalseOnsets)/f.Hours
	f.AlarmShare = inAlarm / 3600 / f.Hours
	faults := slices.Clone(Faults)
	if m == Siblings {
		faults = append(faults, Subtle)
	}
	for _, x := range faults {
		f.Faults = append(f.Faults, fault(m, x, runs, past))
	}
	return f
}

func fault(m Mode, x Fault, runs []*TrainingRun, past map[string]*series.Reference) FaultFigures {
	rng := rand.New(rand.NewPCG(Seed, Seed))
	out := FaultFigures{Fault: x.Name, Seed: Seed, Records: map[string][2]int{}}
	away := 0.0
	if m == Untold {
		away = 20
	}
	hits, tries := map[string]float64{}, map[string]float64{}
	var delays []float64
	inAlarm, outside := map[string]float64{}, map[string]float64{}
	for _, r := range runs {
		in, ok := place(r, x, away, rng)
		if !ok {
			continue
		}
		ps := replay(r, in.MS, m, 0, past[r.ID])
		out.N++
		tries[r.Record]++
		delay, last := math.Inf(1), 0.0
		for i, p := range ps {
			inside := i >= in.First && i < in.End
			if inside && p.rise {
				delay = math.Min(delay, p.t-ps[in.First-1].t)
			}
			if !inside {
				outside[r.Record] += p.t - last
				if p.alarm {
					inAlarm[r.Record] += p.t - last
				}
			}
			last = p.t
		}
		delays = append(delays, delay)
		if !math.IsInf(delay, 1) {
			hits[r.Record]++
		}
	}
	out.Recall = bootstrap(hits, tries)
	slices.Sort(delays)
	out.DelayP50, out.DelayP90 = finite(quantile(delays, 0.5)), finite(quantile(delays, 0.9))
	out.Outside95 = bootstrap(inAlarm, outside)
	out.AlarmOutside = out.Outside95.Value
	for k, n := range tries {
		out.Records[k] = [2]int{int(hits[k]), int(n)}
	}
	return out
}

func finite(x float64) float64 {
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return -1
	}
	return x
}

func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

// bootstrap draws records with replacement, 1,000 times, and gives the ratio of both sums.
func bootstrap(num, den map[string]float64) Interval {
	names := make([]string, 0, len(den))
	n, d := 0.0, 0.0
	for k := range den {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		n, d = n+num[k], d+den[k]
	}
	rng := rand.New(rand.NewPCG(Seed, 99))
	var all []float64
	for range 1000 {
		a, b := 0.0, 0.0
		for range names {
			k := names[rng.IntN(len(names))]
			a, b = a+num[k], b+den[k]
		}
		all = append(all, a/b)
	}
	slices.Sort(all)
	return Interval{Value: n / d, Low: quantile(all, 0.025), High: quantile(all, 0.975)}
}

func asked(rate float64, runs []*TrainingRun) AskedFigures {
	out := AskedFigures{Asked: rate}
	seen, want := map[string]float64{}, map[string]float64{}
	for _, r := range runs {
		ps := replay(r, nil, Told, rate, nil)
		h := ps[len(ps)-1].t / 3600
		out.Hours += h
		want[r.Record] += h * rate
		for _, p := range ps {
			if p.rise {
				seen[r.Record]++
				out.Onsets++
			}
		}
	}
	out.compare(seen, want)
	return out
}

func (f *AskedFigures) compare(seen, want map[string]float64) {
	f.Ratio = bootstrap(seen, want)
	for k := range want {
		x := seen[k] / want[k]
		f.MostRecord = math.Max(f.MostRecord, x)
		if x > 5 {
			f.Above5++
		}
	}
}

// nanos is the processor's time per sample, which other processes disturb less than the clock's.
func nanos(runs []*TrainingRun) float64 {
	e, err := series.New(series.Config{})
	if err != nil {
		return -1
	}
	id, _ := e.Add(series.Ratio)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start, n, t := processor(), 0, int64(0)
	for _, r := range runs[:min(len(runs), 200)] {
		for _, row := range r.Rows {
			t += int64(1e8)
			e.Observe(id, series.Sample{T: t, V: row.MS})
			n++
		}
	}
	return float64(processor()-start) / float64(n)
}

// processor is the time in ns that this thread has had; 0 where the system does not say.
func processor() int64 {
	var u syscall.Rusage
	const thread = 1 // RUSAGE_THREAD
	if syscall.Getrusage(thread, &u) != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
