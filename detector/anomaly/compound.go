package anomaly

import (
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// need asks for a witness of a family whose evidence was at least z thresholds. A certain one passes every z.
type need struct {
	family  Family
	z       float64
	certain bool // nothing else will do
}

// clause is one way in which findings of one GPU and its rank come to more than information.
type clause struct {
	needs    []need
	families int // at least so many different ones, whichever
	window   time.Duration
	told     bool    // each must be against what was told: a change of schedule that nobody announced moves them all as well
	ratio    float64 // of the strong one's level to the expected
	share    float64 // of a step, that the strong one's excess is at least
}

// pattern is a compound finding.
type pattern struct {
	Name    string
	lead    []Family // what it is about: it stands while one of these does
	clauses []clause
	about   string
}

// How many thresholds one witness of a small group must reach, so that chance alone does not make a group of it. With the
// exponential tail that thresholds are made from, z of them are passed exp(-7.5·(z-1)) times as often as one, or more rarely: 1/43,
// 1/1,800 and 1/3,000,000. docs/detection-formulas.md, "From the rate to incidents"; a test adds it up.
const (
	strong   = 1.5
	stronger = 2.0
	alone    = 3.0 // needs nobody else
)

const (
	nearWindow    = 30 * time.Second
	slowWindow    = 5 * time.Minute // heat takes its time
	longestWindow = slowWindow
)

// Patterns are the compound findings, in the order in which they are looked for.
var patterns = []pattern{
	{
		Name: "thermal-throttle", lead: []Family{Throttle, Clock, Thermal}, about: "the GPU slows itself down to stay cool",
		clauses: []clause{
			{needs: []need{{Throttle, 0, true}, {Clock, 0, false}}, window: slowWindow},
			{needs: []need{{Throttle, 0, true}, {Thermal, 0, false}}, window: slowWindow},
			{needs: []need{{Throttle, 0, true}, {Compute, 0, false}}, window: slowWindow},
			{needs: []need{{Throttle, 0, true}, {Pace, 0, false}}, window: slowWindow},
			{needs: []need{{Thermal, 0, true}, {Clock, 0, false}}, window: slowWindow},
			{needs: []need{{Thermal, 0, false}, {Clock, strong, false}, {Pace, 0, false}}, window: slowWindow, told: true},
		},
	},
	{
		Name: "launch-latency", lead: []Family{Launch}, about: "kernels start late: the host is slow, not the GPU",
		clauses: []clause{
			{needs: []need{{Launch, stronger, false}, {Pace, 0, false}}, window: nearWindow, told: true, share: 0.005},
			{needs: []need{{Launch, stronger, false}, {Pace, 0, false}}, window: nearWindow, ratio: 1.5, share: 0.005},
			{needs: []need{{Launch, alone, false}}, window: nearWindow, told: true, share: 0.02},
		},
	},
	{
		Name: "degraded", about: "several unlike signals went bad together",
		clauses: []clause{{families: 4, window: nearWindow, told: true}},
	},
}

// compound is a pattern that was found on a GPU or rank.
type compound struct {
	pattern   *pattern
	report    *report
	onset     int64
	lead      *member
	witnesses []*member
	state     event.State
}

// compounds looks at the entities whose findings changed.
func (e *Engine) compounds() {
	slices.SortFunc(e.touched, func(a, b *entity) int {
		if a.key.less(b.key) {
			return -1
		}
		return 1
	})
	for _, en := range e.touched {
		ms := e.witnesses(en)
		for i := range patterns {
			e.look(en, &patterns[i], ms)
		}
	}
	e.touched = e.touched[:0]
}

// witnesses are the findings of an entity and of the rank on it that can bear one another out.
func (e *Engine) witnesses(en *entity) (ms []*member) {
	all := [][]*member{en.members}
	if en.rank != nil {
		all = append(all, en.rank.members)
	}
	for _, list := range all {
		for _, m := range list {
			if !m.signal().Info && !m.absent {
				ms = append(ms, m)
			}
		}
	}
	return ms
}

func (e *Engine) look(en *entity, p *pattern, ms []*member) {
	i := slices.IndexFunc(en.stories, func(c *compound) bool { return c.pattern == p })
	var found []*member
	for k := range p.clauses {
		if found = p.clauses[k].met(ms); found != nil {
			break
		}
	}
	if i < 0 {
		unnamed := len(p.lead) == 0 && len(en.stories) > 0                                                              // what it is has a name already
		if anchored := en.key.about == Rank && en.gpu != nil; !anchored && !unnamed && found != nil && !p.over(found) { // else it is the GPU's
			e.begin(en, p, found)
		}
		return
	}
	c := en.stories[i]
	for _, m := range found {
		if !slices.Contains(c.witnesses, m) {
			c.witnesses = append(c.witnesses, m)
			c.report.changed = true
		}
	}
	e.judge(en, c)
}

// met gives the findings that meet a clause; nil: it is not met. Of a family the one with the most evidence speaks.
func (c *clause) met(ms []*member) []*member {
	pick := func(f Family, z float64, certain bool) (best *member) {
		for _, m := range ms {
			if m.signal().Family != f || m.z < z || c.told && !m.told || certain && !m.certain {
				continue
			}
			if z > 0 && (c.ratio > 0 && !(m.ratio() >= c.ratio) || c.share > 0 && !(m.level-m.expected >= c.share*m.tr.ent.pace)) {
				continue
			}
			if best == nil || m.z > best.z || m.z == best.z && m.onset < best.onset {
				best = m
			}
		}
		return best
	}
	var out []*member
	for _, n := range c.needs {
		m := pick(n.family, n.z, n.certain)
		if m == nil {
			return nil
		}
		out = append(out, m)
	}
	if c.families > 0 {
		seen := map[Family]bool{}
		for _, m := range ms {
			if f := m.signal().Family; !seen[f] {
				seen[f] = true
				if best := pick(f, 0, false); best != nil {
					out = append(out, best)
				}
			}
		}
		out = c.within(out)
		if len(out) < c.families {
			return nil
		}
		return out
	}
	if len(c.within(out)) < len(out) {
		return nil
	}
	return out
}

// within gives the most findings whose onsets lie within the window.
func (c *clause) within(ms []*member) []*member {
	ms = slices.Clone(ms)
	slices.SortStableFunc(ms, func(a, b *member) int {
		switch {
		case a.onset < b.onset:
			return -1
		case a.onset > b.onset:
			return 1
		}
		return 0
	})
	from, to := 0, 0
	for i, j := 0, 0; j < len(ms); j++ {
		for ms[j].onset-ms[i].onset > int64(c.window) {
			i++
		}
		if j+1-i > to-from {
			from, to = i, j+1
		}
	}
	return ms[from:to]
}

func (e *Engine) begin(en *entity, p *pattern, found []*member) {
	c := &compound{pattern: p, witnesses: found, state: event.StateOpen, onset: found[0].onset}
	for _, m := range found {
		c.onset = min(c.onset, m.onset)
	}
	en.stories = append(en.stories, c)
	c.report = e.report(en, p.Name, c.onset)
	c.report.compound = c
	e.judge(en, c)
}

// judge says what a compound finding is now: open while one of its witnesses is, accepted while what stands was accepted, over
// when nothing of what it is about stands.
func (e *Engine) judge(en *entity, c *compound) {
	c.lead = nil
	open := false
	for _, m := range c.witnesses {
		open = open || m.stands() && m.state == event.StateOpen
		if rank := c.leads(m); c.lead == nil || rank < c.leads(c.lead) || rank == c.leads(c.lead) && m.z > c.lead.z {
			c.lead = m
		}
	}
	if c.pattern.over(c.witnesses) {
		en.stories = slices.DeleteFunc(en.stories, func(x *compound) bool { return x == c })
		e.close(c.report, c.how())
		return
	}
	state := event.StateAccepted
	if open {
		state = event.StateOpen
	}
	if state != c.state {
		c.state, c.report.changed = state, true
	}
	severity := event.Warning
	if own := e.ownOf(en); own != nil && own.ratio() >= costly && own.stands() {
		severity = event.Critical
	}
	if !c.report.severity.AtLeast(severity) {
		c.report.severity, c.report.changed = severity, true
	}
}

// over reports whether too little of a pattern stands: nothing of what it is about, or of an unnamed one fewer than two families.
func (p *pattern) over(ms []*member) bool {
	standing := map[Family]bool{}
	for _, m := range ms {
		if f := m.signal().Family; m.stands() && (len(p.lead) == 0 || slices.Contains(p.lead, f)) {
			standing[f] = true
		}
	}
	if len(p.lead) > 0 {
		return len(standing) == 0
	}
	return len(standing) < 2
}

// how a compound finding ended: it recovered if anything that it is about did.
func (c *compound) how() closing {
	how := closedForgotten
	for _, m := range c.witnesses {
		if m.gone && (len(c.pattern.lead) == 0 || slices.Contains(c.pattern.lead, m.signal().Family)) {
			how = min(how, m.how)
		}
	}
	return how
}

// costly is how much longer its own work takes when a compound finding becomes critical.
const costly = 1.2

// leads orders witnesses: those of the pattern's own families first. A certain one has no expected value to show, so among them a
// measured one goes first.
func (c *compound) leads(m *member) int {
	n := len(c.pattern.lead)
	if slices.Contains(c.pattern.lead, m.signal().Family) {
		n = 0
	}
	if m.certain {
		n++
	}
	return n
}

// paceOf is the finding of the entity's pace: how much longer its steps are.
func (e *Engine) paceOf(en *entity) *member { return newest(en, rowStepTime) }

// ownOf is the finding of the rank's own work. In a synchronous job all ranks' steps are as long as the slowest one's, so where
// compute is measured apart from waiting, only that counts.
func (e *Engine) ownOf(en *entity) *member {
	for _, x := range []*entity{en, en.rank} {
		if x != nil && x.slots[rowCompute] != 0 && e.tracks[x.slots[rowCompute]-1].known {
			return newest(x, rowCompute)
		}
	}
	return e.paceOf(en)
}

// newest is the newest finding of a signal of the entity or of the rank on it.
func newest(en *entity, r row) (best *member) {
	for _, x := range []*entity{en, en.rank} {
		if x == nil {
			continue
		}
		for _, m := range x.members {
			if m.tr.row == r && (best == nil || m.onset > best.onset) {
				best = m
			}
		}
	}
	return best
}

// inStory reports whether the finding bears out one that stands.
func (e *Engine) inStory(m *member) bool {
	en := m.tr.ent
	for _, x := range []*entity{en, en.gpu} {
		if x == nil {
			continue
		}
		for _, c := range x.stories {
			if slices.Contains(c.witnesses, m) {
				return true
			}
		}
	}
	return false
}
