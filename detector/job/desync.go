package job

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// Collective is what a rank whose step stands still says of one process group, by its own word.
type Collective struct {
	Group    string
	Enqueued int64  // collectives entered so far
	Op       string // the newest of them, without sizes; empty: not told
}

const (
	// desyncSettle is how long a number must stand: ranks that stand still say theirs every 5 s, and until each had its turn an older
	// number may be that of a rank which has gone on within a long step.
	desyncSettle = 8 * time.Second
	desyncFresh  = 15 * time.Second // agents say them once a second
	desyncQuorum = 2                // ranks that must have entered a collective before others are late for it

	maxRankGroups    = 16   // process groups of one rank
	maxAttemptGroups = 4096 // of all of an attempt
	maxDesyncs       = 16   // findings of one attempt at once: those furthest behind
	maxEnqueued      = 1 << 53
)

// desyncCause is the agent's too, which compares the ranks of a pod: both speak of one thing.
var desyncCause = event.Cause{Kind: "torch", Name: "desync"}

// desync is what ranks of an attempt that stand still have told. The zero value is of none.
type desync struct {
	groups map[string]map[int]*entered // by name and rank
	told   map[int]int                 // groups of each rank
	open   map[int]*desynced           // by rank
}

// entered is a rank's number of one group.
type entered struct {
	Collective
	step         int64 // the last that the rank ended then
	since, heard time.Time
}

// desynced is a finding that is open.
type desynced struct {
	a      *attempt
	group  string
	most   int64
	step   int64
	onset  time.Time
	report *report
}

// Collective takes in what a rank says of a process group. Only ranks whose steps are taken in are heard; judgement comes with Tick.
func (e *Engine) Collective(now time.Time, job string, t event.Target, c Collective) {
	if t.PodUID == "" || t.Rank == nil || len(job) > maxText || c.Group == "" || len(c.Group) > maxText || len(c.Op) > maxText ||
		c.Enqueued < 0 || c.Enqueued > maxEnqueued {
		e.counts.Malformed++
		return
	}
	if a, m := e.heard(job, t); m != nil {
		a.desync.take(now, m, c)
	}
}

func (d *desync) take(now time.Time, m *member, c Collective) {
	d.init()
	ranks := d.groups[c.Group]
	x := ranks[m.rank]
	switch {
	case x != nil:
	case d.told[m.rank] >= maxRankGroups, ranks == nil && len(d.groups) >= maxAttemptGroups:
		return
	default:
		if ranks == nil {
			ranks = map[int]*entered{}
			d.groups[c.Group] = ranks
		}
		x = &entered{step: -2} // no step is
		ranks[m.rank] = x
		d.told[m.rank]++
	}
	if x.step != m.step || x.Enqueued != c.Enqueued || x.since.After(now) {
		x.step, x.since = m.step, now
	}
	x.Collective, x.heard = c, now
}

func (d *desync) init() {
	if d.groups == nil {
		d.groups, d.told, d.open = map[string]map[int]*entered{}, map[int]int{}, map[int]*desynced{}
	}
}

// tick lets time pass: numbers that hold no more are forgotten, and the others of each group are compared.
func (d *desync) tick(now time.Time, a *attempt) {
	if len(d.groups) == 0 && len(d.open) == 0 {
		return
	}
	for name, ranks := range d.groups {
		for r, x := range ranks {
			if m := a.members[r]; m == nil || m.step != x.step || now.Sub(x.heard) > desyncFresh {
				delete(ranks, r)
				if d.told[r]--; d.told[r] == 0 {
					delete(d.told, r)
				}
			}
		}
		if len(ranks) == 0 {
			delete(d.groups, name)
		}
	}
	for _, r := range slices.Sorted(maps.Keys(d.open)) {
		if why := d.over(a, r, d.open[r]); why != "" {
			d.close(now, a, r, why)
		}
	}
	if a.disputed(now) {
		return
	}
	if a.superseded() {
		d.end(now, a, "a later attempt of the job runs")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.groups)) {
		d.compare(now, a, name)
	}
}

// over says why a finding ended; empty: it did not.
func (d *desync) over(a *attempt, rank int, f *desynced) string {
	x := d.groups[f.group][rank]
	switch m := a.members[rank]; {
	case m == nil || m.step != f.step:
		return "it steps"
	case x == nil:
		return "it tells of its collectives no more"
	case x.Enqueued >= f.most:
		return "it has entered as many as the others had"
	}
	return ""
}

// compare names the ranks of a group that the others wait for. In a process group every rank enters the same collectives in the same
// order, so those that have entered fewer are missing in the next one (the rule of NVIDIA's resiliency extension and of torch's own
// analyser). A number counts that two ranks agree on: one that is alone with more is not believed. Ranks that have not told are
// unknown.
func (d *desync) compare(now time.Time, a *attempt, name string) {
	ranks := d.groups[name]
	count := map[int64]int{}
	var settled []int
	for r, x := range ranks {
		if now.Sub(x.since) >= desyncSettle {
			settled = append(settled, r)
			count[x.Enqueued]++
		}
	}
	most := int64(-1)
	for n, who := range count {
		if who >= desyncQuorum {
			most = max(most, n)
		}
	}
	var behind []int
	ahead, op := 0, ""
	slices.Sort(settled)
	for _, r := range settled {
		x := ranks[r]
		if x.Enqueued < most {
			behind = append(behind, r)
			continue
		}
		if ahead++; x.Enqueued == most {
			op = cmp.Or(op, x.Op)
		}
	}
	slices.SortStableFunc(behind, func(i, j int) int { return cmp.Compare(ranks[i].Enqueued, ranks[j].Enqueued) })
	for _, r := range behind {
		if d.open[r] == nil && len(d.open) < maxDesyncs {
			d.begin(now, a, r, ranks[r], most, ahead, fmt.Sprintf("rank %d entered %d collectives of group %s, %d of %d ranks that tell have entered %d, the last %s; the job has %d ranks",
				r, ranks[r].Enqueued, name, ahead, len(settled), most, cmp.Or(op, "not told"), a.world))
		}
	}
}

func (d *desync) begin(now time.Time, a *attempt, rank int, x *entered, most int64, ahead int, why string) {
	e, t := a.e, a.members[rank].target
	t.Cluster, t.Job, t.WorldSize, t.Attempt = e.o.Cluster, jobOf(a.key), a.world, a.told()
	f := &desynced{a: a, group: x.Group, most: most, step: x.step, onset: x.since.UTC()}
	ev := event.Event{
		ID: event.NewID("//"+e.o.Cluster+"/job/"+a.key.job, strconv.Itoa(a.key.attempt), desyncCause.Signal(), x.Group, strconv.Itoa(rank),
			strconv.FormatInt(x.step, 10), strconv.FormatInt(x.Enqueued, 10)),
		Source: event.GatewaySource(e.o.Cluster, e.o.Gateway, "detector"), Type: event.Anomaly, Time: now, Subject: t.Subject(),
		Data: event.Data{Target: t, Cause: desyncCause, Severity: event.Warning, Onset: f.onset, Evidence: event.Evidence{
			Signal: semconv.TrainCollectiveEnqueued, Unit: "{collective}", Value: num(float64(x.Enqueued)), Expected: num(float64(most)),
			Baseline: fmt.Sprintf("peers(%d)", ahead), Raw: why, PromQL: a.behindQL(x.Group),
		}},
	}
	f.since(now, event.StateOpen, &ev.Data.Evidence)
	d.open[rank] = f
	a.open++
	f.report = e.open(now, f, desyncCause.Signal()+" "+a.subject("rank", strconv.Itoa(rank)), ev)
}

// since brings evidence up to date. The job stands still, so all its ranks wait.
func (f *desynced) since(now time.Time, state event.State, ev *event.Evidence) {
	d := now.Sub(f.onset).Seconds()
	ev.State, ev.DurationS, ev.LostGPUSeconds = state, round3(d), round3(max(0, d)*float64(f.a.world))
}

func (f *desynced) evidence(now time.Time, state event.State) event.Evidence {
	ev := f.report.event.Data.Evidence
	f.since(now, state, &ev)
	return ev
}

func (d *desync) close(now time.Time, a *attempt, rank int, why string) {
	f := d.open[rank]
	delete(d.open, rank)
	a.open--
	ev := f.evidence(now, event.StateCleared)
	ev.Raw, ev.PromQL = why+fmt.Sprintf("; %.3g GPU-seconds were lost", ev.LostGPUSeconds), ""
	a.e.close(now, f.report, ev)
}

// end closes everything that is open.
func (d *desync) end(now time.Time, a *attempt, why string) {
	for _, r := range slices.Sorted(maps.Keys(d.open)) {
		d.close(now, a, r, why)
	}
	*d = desync{}
}

// behindQL fires on ranks that are behind the group's most, without asking whether two agree on it.
func (a *attempt) behindQL(group string) string {
	sel := fmt.Sprintf("pitcrew_attempt=%q,pitcrew_process_group_name=%q", strconv.Itoa(a.key.attempt), group)
	if j := jobOf(a.key); j != nil {
		sel += fmt.Sprintf(",pitcrew_job_uid=%q", j.UID)
	} else {
		sel += fmt.Sprintf(",k8s_pod_uid=%q", strings.TrimPrefix(a.key.job, "pod/"))
	}
	m := "pitcrew_train_collective_enqueued{" + sel + "}"
	return m + " < scalar(max(" + m + "))"
}

// superseded reports whether a later attempt of the job is heard of.
func (a *attempt) superseded() bool {
	for k := range a.e.jobs {
		if k.job == a.key.job && k.attempt > a.key.attempt {
			return true
		}
	}
	return false
}
