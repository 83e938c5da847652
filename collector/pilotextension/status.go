package pilotextension

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/hook"
)

// statusRecords is how many of a rank's last steps its step times are taken from.
const statusRecords = 1024

var exitNames = map[hook.Exit]string{hook.ExitRunning: "running", hook.ExitClean: "clean", hook.ExitException: "exception"}

// status is what is known of the pods named, or of all of this node.
func (p *Pilot) status(_ context.Context, c bus.Command) (bus.Reply, error) {
	out := bus.Reply{Pods: []bus.PodStatus{}}
	for _, pod := range p.fleet.Pods() {
		if len(c.PodUIDs) == 0 || slices.Contains(c.PodUIDs, pod.UID()) {
			out.Pods = append(out.Pods, podStatus(pod))
		}
	}
	return out, nil
}

func podStatus(pod *hook.Pod) bus.PodStatus {
	s := bus.PodStatus{PodUID: pod.UID()}
	if l := pod.Launcher(); l != nil {
		if v, ok := l.View(); ok {
			s.Launcher = &bus.LauncherStatus{State: v.State.State, Attempt: v.State.Attempt, NProc: v.Hello.NProc, Pids: v.State.PIDs, JobUID: v.Hello.JobUID}
		}
	}
	for _, r := range pod.Ranks() {
		rs, gpu, ok := rankStatus(r)
		if !ok {
			continue
		}
		s.Ranks = append(s.Ranks, rs)
		if gpu != "" && !slices.Contains(s.GPUs, gpu) {
			s.GPUs = append(s.GPUs, gpu)
		}
	}
	return s
}

// rankStatus reads one rank; ok is false when neither its ring nor its socket tells who it is.
func rankStatus(r *hook.Rank) (s bus.RankStatus, gpu string, ok bool) {
	s.Connected, s.ProcState = r.Connected(), r.ProcessState()
	h, live := r.Hello()
	if live {
		s.Rank, s.LocalRank, s.WorldSize, s.Attempt, s.Pid = h.Rank, h.LocalRank, h.WorldSize, h.Attempt, h.PID
		s.Step, s.Section, s.CanSave, s.Strategy, s.SaveS, s.Exit = h.Step, h.Section, h.CanSave, h.Strategy, h.SaveP99, exitNames[hook.ExitRunning]
	}
	ring := r.Ring()
	if ring == nil {
		return s, "", live
	}
	v, err := r.Snapshot(ring)
	if err != nil {
		s.Error = err.Error()
		return s, "", live
	}
	id := v.Identity
	s.Rank, s.LocalRank, s.WorldSize, s.Attempt, s.Pid = id.Rank, id.LocalRank, id.WorldSize, id.Attempt, id.PID
	s.Step, s.StepAgeS, s.HeartbeatAgeS = int64(min(v.Step, math.MaxInt64)), v.StepAge().Seconds(), v.HeartbeatAge().Seconds()
	s.Section, s.SectionAgeS = v.Section.String(), v.Age(v.SectionMono).Seconds()
	s.SaveS = max(s.SaveS, v.CkptDuration.Seconds())
	s.CkptStep = int64(min(v.CkptStep, math.MaxInt64))
	s.Claim = claimReading(ring, &v)
	if step, ok := v.Resumed(); ok {
		n := int64(min(step, math.MaxInt64))
		s.ResumedStep = &n
	}
	s.CanSave = s.CanSave || v.CanSave()
	s.Exit, s.Error = exitNames[v.Exit], v.Error
	if records, err := ring.Records(&v, 0, statusRecords); err == nil {
		s.MedianStepS, s.P99StepS = stepTimes(records)
	}
	return s, v.GPUUUID, true
}

// claimReading is what the rank read of its job's heartbeat. The fields are stored before their time; a second look that finds another time or
// another value shows that the first came between two stores.
func claimReading(ring *hook.Ring, v *hook.Snapshot) *bus.ClaimReading {
	c := v.Claim
	if c.ReadMono == 0 || max(c.Epoch, c.Step, c.Count) > math.MaxInt64 || c.Attempt > math.MaxInt32 {
		return nil
	}
	if again, err := ring.Snapshot(); err != nil || again.Claim != c {
		return nil
	}
	return &bus.ClaimReading{Epoch: int64(c.Epoch), Attempt: int(c.Attempt), Step: int64(c.Step), Count: int64(c.Count), AgeS: v.Age(c.ReadMono).Seconds()}
}

// stepTimes are the median and the 99th percentile (nearest rank) of the steps' durations, 0 when none is known.
func stepTimes(records []hook.Record) (median, p99 float64) {
	var ds []time.Duration
	for _, r := range records {
		if r.Duration > 0 {
			ds = append(ds, r.Duration)
		}
	}
	if len(ds) == 0 {
		return 0, 0
	}
	slices.Sort(ds)
	at := func(q float64) float64 { return ds[int(math.Ceil(q*float64(len(ds))))-1].Seconds() }
	return at(0.5), at(0.99)
}
