package detector

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// Collective is what a rank whose step stands still says of one process group: its own word, as all of torch/desync.
type Collective struct {
	Target    event.Target // pod, rank, attempt
	Time      time.Time
	Group     string
	Desc      string
	Step      int64
	Enqueued  int64 // collectives entered so far; -1 unknown
	Completed int64
	Op        string // the newest that was entered
}

const (
	collectivesFresh = 15 * time.Second // ranks that stand still say it every 5 s
	maxGroupRanks    = 1024
	maxGangs         = 1024
)

type gangKey struct {
	pod, group string
	attempt    int
}

// Collective compares the ranks of a pod that stand still. In a process group every rank enters the same collectives in the same
// order, so the ranks that have entered fewer than another are the ones that the others wait for (the rule of NVIDIA's resiliency
// extension and of torch's own analyser). Ranks that entered as many, but another one, have parted ways.
func (e *Engine) Collective(c Collective) []finding.Finding {
	e.tick(c.Time)
	if c.Enqueued < 0 {
		return e.take()
	}
	if r, ok := e.rank(c.Target); ok && !r.gone {
		k := gangKey{c.Target.PodUID, c.Group, r.attempt}
		ranks, ok := e.gangs.get(k)
		if !ok {
			ranks = map[int]Collective{}
			e.gangs.put(k, ranks)
		}
		for n, x := range ranks {
			now, known := e.ranks.get(rankKey{k.pod, n})
			if !known || now.gone || now.step > x.Step || e.now.Sub(x.Time) > collectivesFresh {
				delete(ranks, n) // it stands still no more
			}
		}
		if _, known := ranks[*c.Target.Rank]; known || len(ranks) < maxGroupRanks {
			ranks[*c.Target.Rank] = c
		}
		e.compare(ranks)
	}
	return e.take()
}

// compare names the ranks that hold a group up.
func (e *Engine) compare(ranks map[int]Collective) {
	var most int64 = -1
	for _, x := range ranks {
		most = max(most, x.Enqueued)
	}
	var level []int // ranks that have entered as many as any
	for n, x := range ranks {
		if x.Enqueued == most {
			level = append(level, n)
		}
	}
	slices.Sort(level)
	if len(level) < len(ranks) {
		ahead := ranks[level[0]]
		for _, x := range ranks {
			if x.Enqueued < most {
				e.desync(x, most, fmt.Sprintf("entered %d collectives of group %s, %d of %d ranks have entered %d, the last %s",
					x.Enqueued, groupName(x), len(level), len(ranks), most, opName(ahead.Op)))
			}
		}
		return
	}
	// The more common operation is right; among as many, the one of the lowest rank.
	count := map[string]int{}
	for _, n := range level {
		count[opName(ranks[n].Op)]++
	}
	common := opName(ranks[level[0]].Op)
	for _, n := range level {
		if op := opName(ranks[n].Op); count[op] > count[common] {
			common = op
		}
	}
	for _, n := range level {
		if x := ranks[n]; x.Op != "" && common != "?" && opName(x.Op) != common {
			e.desync(x, most, fmt.Sprintf("entered %s as collective %d of group %s, where %d of %d ranks entered %s",
				opName(x.Op), most, groupName(x), count[common], len(ranks), common))
		}
	}
}

func (e *Engine) desync(x Collective, most int64, why string) {
	r, ok := e.ranks.get(rankKey{x.Target.PodUID, *x.Target.Rank})
	if !ok {
		return
	}
	e.begin(onset{
		key: r.desync, typ: event.Anomaly, target: x.Target, cause: event.Cause{Kind: "torch", Name: "desync"}, severity: event.Warning, at: x.Time,
		evidence: event.Evidence{
			Signal: semconv.EventTrainCollectives, Unit: "{collective}", Value: num(float64(x.Enqueued)), Expected: num(float64(most)), Baseline: "peers",
			Raw: fmt.Sprintf("step %d: %s", x.Step, why),
		},
	})
}

func groupName(x Collective) string {
	if x.Desc == "" || x.Desc == "undefined" {
		return x.Group
	}
	return x.Group + " (" + x.Desc + ")"
}

// opName is an operation without its sizes, which may differ among ranks.
func opName(op string) string {
	name, _, _ := strings.Cut(op, " ")
	if name == "" {
		return "?"
	}
	return name
}
