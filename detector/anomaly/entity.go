package anomaly

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// Labels are what a point says of itself beside its value. Strings over maxLabel bytes make it malformed.
type Labels struct {
	GPU, PCI           string // UUID and address; of an NVSwitch or a port its id
	PodUID             string
	Namespace, Pod     string
	Rank, Local        int64 // -1: unknown
	WorldSize, Attempt int64
	Value              string // of the metric's own attribute
}

const maxLabel = 256

type entityKey struct {
	about About
	id    string // GPU's UUID or pod's UID
	rank  int64
}

func (l *Labels) key(a About) (entityKey, bool) {
	for _, s := range [...]string{l.GPU, l.PCI, l.PodUID, l.Namespace, l.Pod, l.Value} {
		if len(s) > maxLabel {
			return entityKey{}, false
		}
	}
	if a != Rank {
		return entityKey{a, l.GPU, 0}, l.GPU != ""
	}
	return entityKey{Rank, l.PodUID, l.Rank}, l.PodUID != "" && l.Rank >= 0 && l.Rank <= math.MaxInt32
}

// subject names the entity within a condition's key.
func (k entityKey) subject() string {
	switch k.about {
	case GPU:
		return "gpu/" + k.id
	case Switch:
		return "switch/" + k.id
	case Port:
		return "port/" + k.id
	}
	return "pod/" + k.id + "/rank/" + strconv.FormatInt(k.rank, 10)
}

// entity is a GPU or a rank, an NVSwitch or a port.
type entity struct {
	key     entityKey
	target  event.Target
	seen    int64 // engine's clock
	heard   bool  // in this batch
	newest  [2]int64
	slots   [rowsMost]uint32 // slot + 1 by row; 0: no series
	members []*member        // findings of its signals that are open, accepted, or ended a moment ago
	stories []*compound

	// Of a rank.
	attempt   int64
	section   int // -1: unknown
	step      float64
	stepAge   float64 // NaN: unknown
	ckpt      float64
	fresh     bool  // a checkpoint of which the time was not taken in
	warm      int   // steps of this process so far
	stepAt    int64 // of the last step's end
	pace      float64
	mark      uint32 // counts the times that the loop left its steps
	elsewhere uint8  // phase in which it was then
	work      uint32
	workAt    float64 // tokens or samples of a step; 0: not told
	workNext  float64
	workRow   int
	quiet     int64 // until then nothing of it is absent

	rank *entity // of a GPU: the rank that runs on it
	gpu  *entity // of a rank: its GPU, where that has values
	busy float64 // of a GPU; NaN: unknown
}

const (
	linkKept = 15 * time.Second // a rank not heard of for so long says nothing of its GPU
	forget   = 10 * time.Minute // what was not heard of for so long is gone
)

// entity gives the entity of a point; nil: there is no room, or the point is of a superseded attempt.
func (e *Engine) entity(k entityKey, l *Labels) *entity {
	en := e.ents.of(k)
	if en == nil {
		if en = e.admit(k); en == nil {
			e.turned = true
			e.counts.Refused++
			return nil
		}
		en.describe(l)
		e.link(en)
	}
	if k.about == Rank && l.Attempt != en.attempt {
		if l.Attempt < en.attempt {
			e.counts.Stale++
			return nil
		}
		en.attempt, en.warm, en.section, en.stepAge = l.Attempt, 0, -1, math.NaN()
		en.quiet = e.now + int64(settle)
		en.describe(l)
		e.link(en)
	}
	if k.about == Rank && l.GPU != en.target.GPU {
		en.describe(l)
		e.link(en)
	}
	if l.PCI != "" {
		en.target.PCI = l.PCI
	}
	if !en.heard {
		en.heard = true
		e.heard = append(e.heard, en)
	}
	return en
}

func (en *entity) describe(l *Labels) {
	t := event.Target{PCI: l.PCI}
	switch en.key.about {
	case GPU:
		t.GPU = l.GPU
	case Rank:
		r := int(en.key.rank)
		t = event.Target{GPU: l.GPU, Namespace: l.Namespace, Pod: l.Pod, PodUID: l.PodUID, Rank: &r, WorldSize: int(max(l.WorldSize, 0))}
		if l.Local >= 0 {
			n := int(l.Local)
			t.LocalRank = &n
		}
		a := int(l.Attempt)
		t.Attempt = &a
	}
	en.target = t
}

// link ties a rank and its GPU together. A GPU that several ranks share belongs to the one that was heard of last.
func (e *Engine) link(en *entity) {
	if en.key.about == Rank {
		for g, r := range e.gpuRank {
			if r == en && g != en.target.GPU {
				delete(e.gpuRank, g)
			}
		}
		if en.gpu != nil && en.gpu.rank == en {
			en.gpu.rank = nil
		}
		en.gpu = nil
		if en.target.GPU == "" {
			return
		}
		e.gpuRank[en.target.GPU] = en
		if g := e.ents.of(entityKey{GPU, en.target.GPU, 0}); g != nil {
			g.rank, en.gpu = en, g
		}
		return
	}
	if r := e.gpuRank[en.key.id]; r != nil && en.key.about == GPU {
		en.rank, r.gpu = r, en
	}
}

// admit makes room for an entity. At the bound the one seen least recently goes; while all are alive the newcomer is refused, so
// that what is judged stays judged.
func (e *Engine) admit(k entityKey) *entity {
	if len(e.tracks)-len(e.free) >= e.o.MaxSeries || e.ents.len() >= e.o.MaxSeries {
		if !e.evict() {
			return nil
		}
	}
	en := &entity{
		key: k, seen: e.now, attempt: -1, section: -1, step: -1, stepAge: math.NaN(), ckpt: -1, busy: math.NaN(), quiet: e.now + int64(settle),
	}
	if !e.ents.add(en) {
		return nil
	}
	return en
}

func (e *Engine) evict() bool {
	if e.now < e.full {
		return false
	}
	var oldest *entity
	for en := range e.ents.all {
		if en.heard {
			continue
		}
		if oldest == nil || en.seen < oldest.seen || en.seen == oldest.seen && en.key.less(oldest.key) {
			oldest = en
		}
	}
	if oldest == nil || e.now-oldest.seen < int64(settle) {
		e.full = e.now + int64(sweepEvery)
		return false
	}
	e.remove(oldest)
	e.counts.Evicted++
	return true
}

func (k entityKey) less(o entityKey) bool {
	if k.id != o.id {
		return k.id < o.id
	}
	return k.rank < o.rank
}

// remove forgets an entity and what is open about it, without calling that a recovery.
func (e *Engine) remove(en *entity) {
	for _, r := range slices.Clone(e.reports) {
		if r.about == en {
			e.close(r, closedForgotten)
		}
	}
	for _, m := range en.members {
		if !m.gone {
			m.gone, m.ended, m.how = true, e.now, closedForgotten
		}
	}
	e.touch(en)
	for r := range en.slots {
		if slot := en.slots[r]; slot != 0 {
			e.release(slot - 1)
		}
	}
	if en.rank != nil {
		en.rank.gpu = nil
	}
	if en.gpu != nil {
		en.gpu.rank = nil
	}
	if e.gpuRank[en.target.GPU] == en {
		delete(e.gpuRank, en.target.GPU)
	}
	e.ents.remove(en)
	e.touched = slices.DeleteFunc(e.touched, func(x *entity) bool { return x == en })
}

// sweep removes what was not heard of for long.
func (e *Engine) sweep() {
	for _, en := range e.sorted() {
		if e.now-en.seen >= int64(forget) {
			e.remove(en)
			continue
		}
		before := len(en.members)
		en.members = slices.DeleteFunc(en.members, func(m *member) bool { return m.gone && e.now-m.ended > int64(longestWindow) })
		if len(en.members) != before || len(en.stories) > 0 {
			e.touch(en)
		}
	}
}

func (e *Engine) sorted() []*entity {
	all := slices.AppendSeq(make([]*entity, 0, e.ents.len()), e.ents.all)
	slices.SortFunc(all, func(a, b *entity) int {
		switch {
		case a.key == b.key:
			return 0
		case a.key.about != b.key.about:
			return int(a.key.about) - int(b.key.about)
		case a.key.less(b.key):
			return -1
		}
		return 1
	})
	return all
}
