package anomaly

import (
	"fmt"
	"math"
	"slices"

	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/event"
)

// member is the finding of one series.
type member struct {
	tr       *track
	report   *report
	onset    int64
	ended    int64
	value    float64 // at opening; so are the following
	expected float64
	lower    float64
	upper    float64
	score    float64
	baseline string
	shape    string
	phase    string
	promql   string
	age      int     // samples behind the baseline
	ageS     float64 // since the first of them
	samples  []event.Sample

	z       float64 // the largest evidence in thresholds, since it opened
	told    bool    // against what was told or is known for certain; else it may be a schedule's
	certain bool
	absent  bool
	up      bool
	state   event.State
	watch   bool // its series has taken the level as baseline, or lost its memory: the band at opening decides from now on
	level   float64
	inRow   int
	inSince int64
	lost    float64 // GPU-seconds, of the pace of a rank
	gone    bool    // ended; kept for a while as a witness
	how     closing // it ended
}

// mostZ bounds what one finding can weigh.
const mostZ = 99

// zOf turns a score into evidence in thresholds: the engine's score is z/(1+z).
func zOf(score float64) float64 {
	if score >= 1 {
		return mostZ
	}
	return min(mostZ, score/(1-score))
}

func (m *member) signal() *Signal { return &Catalogue[m.tr.row] }

// ratio is that of the level now to the expected one; NaN where nothing was expected.
func (m *member) ratio() float64 {
	if m.expected == 0 {
		return math.NaN()
	}
	return m.level / m.expected
}

// stands reports whether the deviation is still there.
func (m *member) stands() bool { return !m.gone }

func (e *Engine) touch(en *entity) {
	for _, x := range []*entity{en, en.gpu} {
		if x != nil && !slices.Contains(e.touched, x) {
			e.touched = append(e.touched, x)
		}
	}
}

// opened takes in a finding of a series engine.
func (e *Engine) opened(tr *track, s *Signal, f *series.Finding, x series.Sample) {
	if f.What == series.Flatline && !s.Flat {
		return
	}
	e.onsets[tr.row]++
	up := f.Ratio > 1
	if tr.profile == facility {
		up = f.Value > f.Expected
	}
	if f.Better {
		return
	}
	if s.least > 0 && math.Abs(tr.middle(4)-f.Expected) < s.least {
		return
	}
	if slot := tr.ent.slots[rowOf[s.twin]]; s.twin != "" && slot != 0 && e.tracks[slot-1].m != nil {
		return
	}
	if m := tr.m; m != nil { // its level was accepted, and it became worse
		m.state, m.z = event.StateOpen, max(m.z, zOf(f.Score))
		e.touch(tr.ent)
		return
	}
	e.add(tr, &member{
		onset: f.Onset, value: f.Value, expected: f.Expected, lower: f.Lower, upper: f.Upper, score: f.Score,
		baseline: f.Baseline, shape: f.What.String(), phase: phaseName(f.Phase), promql: e.promql(tr, s, f), age: f.Age, ageS: float64(x.T-tr.since) * 1e-9,
		z: zOf(f.Score), told: f.Severity == series.Warning, up: up,
	})
}

func phaseName(p uint8) string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return ""
}

// add opens the finding of a series.
func (e *Engine) add(tr *track, m *member) {
	s := &Catalogue[tr.row]
	m.tr, m.state, m.samples, m.level = tr, event.StateOpen, tr.shown(m.onset), m.value
	tr.m = m
	tr.ent.members = append(tr.ent.members, m)
	m.report = e.report(tr.ent, s.Name, m.onset)
	m.report.member = m
	e.touch(tr.ent)
}

// certain counts values beyond the limit of a signal that needs no statistics.
func (e *Engine) certain(tr *track, s *Signal, t int64, v float64, phase uint8) {
	beyond := s.Bad == High && v > s.Certain || s.Bad == Low && v < s.Certain
	tr.known = true
	switch {
	case !beyond:
		tr.run = max(tr.run-1, 0)
	case phase != series.Warmup: // while the loop is elsewhere nothing begins, and what stands does not end by that
		tr.run = min(tr.run+1, certainRow)
	}
	switch {
	case tr.run == certainRow && tr.m == nil:
		first := tr.recent(certainRow)[0].t
		limit := math.NaN()
		m := &member{
			onset: first, value: v, expected: limit, lower: limit, upper: limit, score: 1, baseline: "table", shape: "limit",
			phase: phaseName(phase), z: mostZ, told: true, certain: true, up: s.Bad == High,
		}
		op := ">"
		if m.upper = s.Certain; s.Bad == Low {
			m.lower, m.upper, op = s.Certain, limit, "<"
		}
		m.promql = fmt.Sprintf("%s %s %g", e.selector(tr, s), op, s.Certain)
		e.add(tr, m)
	case tr.run == 0 && tr.m != nil:
		e.cleared(tr, t)
	}
}

// certainRow is how many values in a row make it certain, and as many the other way end it.
const certainRow = 3

// absent opens the finding of a series that fell silent.
func (e *Engine) absent(tr *track, s *Signal, silent float64) {
	nan := math.NaN()
	e.add(tr, &member{
		onset: tr.t, value: nan, expected: nan, lower: nan, upper: nan, score: 1, baseline: "self", shape: "absent",
		promql: fmt.Sprintf("absent_over_time(%s[%s])", e.selector(tr, s), promNow), age: int(tr.n),
		ageS: float64(tr.t-tr.since)*1e-9 + silent, z: 1, absent: true,
	})
}

// cleared ends the finding of a series: it is back in its band.
func (e *Engine) cleared(tr *track, t int64) {
	m := tr.m
	switch {
	case m == nil:
	case m.watch: // back at the level that was accepted, which is none that was expected
		m.state, m.report.changed = event.StateAccepted, true
		e.touch(tr.ent)
	default:
		e.over(m, t, closedCleared)
	}
}

func (e *Engine) over(m *member, t int64, how closing) {
	m.ended, m.gone, m.how, m.tr.m = t, true, how, nil
	if how == closedCleared {
		m.state = event.StateCleared
	} else {
		m.state = event.StateAccepted
	}
	if m.report != nil {
		e.close(m.report, how)
	}
	e.touch(m.tr.ent)
}

// accepted is a level that stayed until the series took it for its own. That is no recovery: where it was judged against what was
// told, or bears another finding out, it stands until the old level returns or someone accepts it.
func (e *Engine) accepted(tr *track, t int64) {
	m := tr.m
	if m == nil {
		return
	}
	if !m.told && !e.inStory(m) {
		e.over(m, t, closedAccepted)
		return
	}
	m.state, m.watch, m.inRow = event.StateAccepted, true, 0
	m.report.changed = true
	e.touch(tr.ent)
}

// follow keeps the finding of a series up to date with a value.
func (e *Engine) follow(tr *track, t int64, val, score float64) {
	m, s := tr.m, &Catalogue[tr.row]
	if m == nil {
		return
	}
	if m.state == event.StateOpen {
		if z := zOf(score); z > m.z {
			m.z = z
			e.touch(tr.ent)
		}
	}
	if s.Family == Pace && s.Bad == High && m.expected > 0 && val > m.expected {
		m.lost += val - m.expected
	}
}

// back ends what is absent, and watches the level of what was accepted.
func (tr *track) back(e *Engine, s *Signal, val float64) {
	m := tr.m
	switch {
	case m == nil:
	case m.absent:
		e.over(m, tr.t, closedCleared)
	case !m.watch:
		m.level += levelRate * (val - m.level)
	default:
		m.level += levelRate * (val - m.level)
		if m.up && m.level <= m.upper || !m.up && m.level >= m.lower { // whatever its series says
			if m.inRow++; m.inRow == 1 {
				m.inSince = tr.t
			}
			if m.inRow >= backRow && tr.t-m.inSince >= int64(backLeast) {
				e.over(m, tr.t, closedCleared)
			}
		} else {
			m.inRow = 0
		}
	}
}

// selector names the series as a Prometheus query on the agent's endpoint would.
func (e *Engine) selector(tr *track, s *Signal) string {
	k := tr.ent.key
	labels := fmt.Sprintf("hw_id=%q", k.id)
	if k.about == Rank {
		labels = fmt.Sprintf("k8s_pod_uid=%q,pitcrew_rank=\"%d\"", k.id, k.rank)
	}
	if s.Attr != "" {
		labels += fmt.Sprintf(",%s=%q", promLabel(s.Attr), s.Value)
	}
	return s.promName() + "{" + labels + "}"
}

// The windows of equivalent queries: what a scraper sees, who comes every 15 s to an endpoint whose values are 10 s old at most. They
// fire later than the engine does, and not on what is over within a window.
const (
	promNow  = "1m"
	promBase = "10m"
)

// promql gives an expression that fires on much the same: the mean of now against the middle of before, by the share that the
// engine's threshold was of what it expected.
func (e *Engine) promql(tr *track, s *Signal, f *series.Finding) string {
	sel, op, limit := e.selector(tr, s), ">", f.Upper
	if f.Value < f.Expected {
		op, limit = "<", f.Lower
	}
	base := fmt.Sprintf("quantile_over_time(0.5, %s[%s] offset %s)", sel, promBase, promNow)
	switch {
	case f.What == series.Flatline:
		return fmt.Sprintf("changes(%s[5m]) == 0", sel)
	case s.Kind == series.Counter:
		return fmt.Sprintf("rate(%s[2m]) > %.6g", sel, max(f.Upper, 0))
	case f.What == series.Stall:
		return fmt.Sprintf("max_over_time(%s[%s]) > 3 * %s", sel, promNow, base)
	case !(math.Abs(f.Expected) > 0) || math.IsNaN(limit):
		return fmt.Sprintf("avg_over_time(%s[%s]) %s %.6g", sel, promNow, op, limit)
	}
	return fmt.Sprintf("avg_over_time(%s[%s]) %s %.4g * %s", sel, promNow, op, limit/f.Expected, base)
}
