package class

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"

	"github.com/pitcrew/pitcrew/detector/series"
)

// Signature is what makes two workloads siblings. Empty fields are a value like any other, and equal only to themselves.
type Signature struct {
	Model, GPU, Driver, Framework string
	TokensPerStep, SequenceLength int64
	Ranks                         int64 // of the whole job: eight of them step differently from sixty-four
}

// Key is a class: a signature and the signal that is kept of it, such as pitcrew.train.step.duration.
type Key struct {
	Signature
	Signal string
}

const maxName = 128 // bytes of a name; a longer one is cut and told apart by its hash

// bounded makes names that came from outside as long as they may be.
func bounded(s string) string {
	if len(s) <= maxName {
		return s
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return fmt.Sprintf("%s~%016x", s[:maxName-17], h.Sum64())
}

func (k Key) bounded() Key {
	k.Model, k.GPU, k.Driver, k.Framework, k.Signal = bounded(k.Model), bounded(k.GPU), bounded(k.Driver), bounded(k.Framework), bounded(k.Signal)
	return k
}

func (k Key) compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Model, o.Model), cmp.Compare(k.GPU, o.GPU), cmp.Compare(k.Driver, o.Driver), cmp.Compare(k.Framework, o.Framework),
		cmp.Compare(k.TokensPerStep, o.TokensPerStep), cmp.Compare(k.SequenceLength, o.SequenceLength), cmp.Compare(k.Ranks, o.Ranks), cmp.Compare(k.Signal, o.Signal))
}

// Config bounds a store. Zero fields take the defaults.
type Config struct {
	Writer   string // of the records made here: unique among the gateways that merge
	MaxRuns  int    // records in all; default 4096, of at most some 12 KiB each
	PerClass int    // of them in one class; default 16
	MaxSteps int    // entries of a profile; default 4096. A longer run halves its resolution as often as it must
}

func (c *Config) fill() error {
	for _, f := range []struct {
		v                 *int
		name              string
		least, most, none int
	}{{&c.MaxRuns, "max_runs", 1, 1 << 20, 4096}, {&c.PerClass, "per_class", 2, 256, 16}, {&c.MaxSteps, "max_steps", 64, stepsMost, 4096}} {
		if *f.v == 0 {
			*f.v = f.none
		}
		if *f.v < f.least || *f.v > f.most {
			return fmt.Errorf("%s: %d is not in [%d, %d]", f.name, *f.v, f.least, f.most)
		}
	}
	c.Writer = bounded(c.Writer)
	return nil
}

// name tells a record from the others of its class.
type name struct{ run, writer string }

func (n name) compare(o name) int {
	return cmp.Or(cmp.Compare(n.run, o.run), cmp.Compare(n.writer, o.writer))
}

// Store holds the classes.
type Store struct {
	cfg     Config
	classes map[Key]map[name]*record
	n       int
	counts  Counts // of what happened
}

// New makes an empty store.
func New(cfg Config) (*Store, error) {
	if err := cfg.fill(); err != nil {
		return nil, fmt.Errorf("classes: %w", err)
	}
	return &Store{cfg: cfg, classes: map[Key]map[name]*record{}}, nil
}

// Counts of a store: what is in it, and what happened since it was made.
type Counts struct {
	Classes, Runs int64
	Evicted       int64 // records dropped at the bounds
	Observed      int64 // values taken in
	Refused       int64 // values that were none
}

// Counts reports how full the store is, and what happened.
func (s *Store) Counts() Counts {
	c := s.counts
	c.Classes, c.Runs = int64(len(s.classes)), int64(s.n)
	return c
}

// Observe takes the value of a step of a run, at a time in ns of the gateway's clock. It is for the training phase alone, for what
// stands for the job as a whole (the median over its ranks), and not while a finding of the run is open: a fault is not to become
// what siblings expect. Values of steps that are gone are counted in the distribution and not in the profile.
func (s *Store) Observe(k Key, run string, step, at int64, v float64) {
	if !(v > 0) || math.IsInf(v, 1) || step < 0 {
		s.counts.Refused++
		return
	}
	k, n := k.bounded(), name{bounded(run), s.cfg.Writer}
	r := s.classes[k][n]
	if r == nil {
		r = &record{last: at}
		s.put(k, n, r)
		s.trim(k)
		s.bound()
	}
	r.observe(step, at, v, s.cfg.MaxSteps)
	s.counts.Observed++
}

// put adds a record or replaces it by a later version of it.
func (s *Store) put(k Key, n name, r *record) {
	c := s.classes[k]
	if c == nil {
		c = map[name]*record{}
		s.classes[k] = c
	}
	switch old := c[n]; {
	case old == nil:
		s.n++
		c[n] = r
	case old.compare(r) < 0:
		c[n] = r
	}
}

func (s *Store) drop(k Key, n name) {
	delete(s.classes[k], n)
	if len(s.classes[k]) == 0 {
		delete(s.classes, k)
	}
	s.n--
	s.counts.Evicted++
}

// trim drops the least recently observed of a class, and bound of all. The order is total and that of versions too, and a record
// that is beyond a bound in a part of a union is beyond it in the whole: merging stays associative at the bounds.
func (s *Store) trim(k Key) {
	for len(s.classes[k]) > s.cfg.PerClass {
		_, n := oldest(map[Key]map[name]*record{k: s.classes[k]})
		s.drop(k, n)
	}
}

func (s *Store) bound() {
	for s.n > s.cfg.MaxRuns {
		s.drop(oldest(s.classes))
	}
}

func oldest(classes map[Key]map[name]*record) (key Key, id name) {
	var least *record
	for k, c := range classes {
		for n, r := range c {
			if least == nil || cmp.Or(cmp.Compare(r.last, least.last), k.compare(key), n.compare(id)) < 0 {
				least, key, id = r, k, n
			}
		}
	}
	return key, id
}

// Merge takes in what another store knows. Neither is changed by what the other observes later.
func (s *Store) Merge(o *Store) {
	for k, c := range o.classes {
		for n, r := range c {
			s.put(k, n, r.clone())
		}
	}
	for k := range s.classes {
		s.trim(k)
	}
	s.bound()
}

// Prior is what a class says of a run that it has not seen.
type Prior struct {
	Runs          int
	Values        int64
	Location      float64 // the median of the runs' medians, in the signal's unit
	Between       float64 // scale of the runs' medians around it, relative: 1.4826 times the median distance
	Noise         float64 // scale of a value around its run's level, relative: the median over the runs
	P50, P90, P99 float64 // of all values, within 1 %
}

// Prior is what the class shows without the run that asks. ok is false where there is no other run.
func (s *Store) Prior(k Key, run string) (p Prior, ok bool) {
	var all sketch
	var medians, noise []float64
	for _, r := range s.runs(k, run) {
		medians = append(medians, math.Log(r.sketch.quantile(0.5)))
		noise = append(noise, float64(r.noise))
		all.merge(&r.sketch)
		p.Runs++
	}
	if p.Runs == 0 {
		return p, false
	}
	centre := middle(medians)
	p.Location, p.Noise, p.Values = math.Exp(centre), middle(noise), int64(all.total)
	for i := range medians {
		medians[i] = math.Abs(medians[i] - centre)
	}
	p.Between = 1.4826 * middle(medians)
	p.P50, p.P90, p.P99 = all.quantile(0.5), all.quantile(0.9), all.quantile(0.99)
	return p, true
}

// maxSiblings of one reference: the latest.
const maxSiblings = 9

// Reference is the profile of the class without the run that asks, for series.Sample: its At is the level that is expected at a
// step, its Work counts the changes of the schedule. It is nil where there is no other run, which every method of it bears. It
// costs a pass over the profiles: take it when a run starts or its class gained a run, not for each step.
func (s *Store) Reference(k Key, run string) *series.Reference {
	every, levels := aligned(s.runs(k, run))
	if len(levels) == 0 {
		return nil
	}
	return series.NewReferenceEvery(every, levels)
}

// runs gives the runs of a class but one, the latest first; what several writers saw of one run is one.
func (s *Store) runs(k Key, but string) []*record {
	k, but = k.bounded(), bounded(but)
	type named struct {
		name
		*record
	}
	var parts []named
	for n, r := range s.classes[k] {
		if n.run != but || but == "" {
			parts = append(parts, named{n, r})
		}
	}
	slices.SortFunc(parts, func(a, b named) int { return a.name.compare(b.name) })
	var out []named
	for _, p := range parts {
		if last := len(out) - 1; last >= 0 && out[last].run == p.run {
			out[last].record = join(out[last].record, p.record)
			continue
		}
		out = append(out, p)
	}
	slices.SortStableFunc(out, func(a, b named) int { return cmp.Compare(b.last, a.last) })
	rs := make([]*record, len(out))
	for i, p := range out {
		rs[i] = p.record
	}
	return rs
}

// aligned gives the levels of the latest runs at one resolution: that of the middle run, so that one endless run does not blur
// all. Runs that are coarser are left out.
func aligned(rs []*record) (every int, levels [][]float64) {
	if len(rs) == 0 {
		return 0, nil
	}
	folds := make([]uint8, len(rs))
	for i, r := range rs {
		folds[i] = r.fold
	}
	slices.Sort(folds)
	fold := folds[(len(folds)-1)/2]
	for _, r := range rs {
		if r.fold <= fold && len(levels) < maxSiblings {
			levels = append(levels, r.at(fold))
		}
	}
	return 1 << fold, levels
}

// middle is the median; v is put in order.
func middle(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
