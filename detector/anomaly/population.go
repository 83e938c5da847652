package anomaly

import "github.com/pitcrew/pitcrew/detector/index"

// population is the entities that are held, found by their keys.
type population struct {
	numbers *index.Table
	by      []*entity // number; nil: nobody has it
}

func newPopulation(most int) (population, error) {
	t, err := index.New(most)
	return population{numbers: t}, err
}

func (k entityKey) index() index.Key { return index.Key{Name: k.id, N: k.rank, Class: uint8(k.about)} }

func (p *population) len() int { return p.numbers.Len() }

// of gives the entity of a key; nil: it is not held.
func (p *population) of(k entityKey) *entity {
	if n, ok := p.numbers.Find(k.index()); ok {
		return p.by[n]
	}
	return nil
}

// add takes in an entity that is not held yet; false: the population is at its bound.
func (p *population) add(en *entity) bool {
	n, ok := p.numbers.Put(en.key.index())
	if !ok {
		return false
	}
	if int(n) == len(p.by) {
		p.by = append(p.by, nil)
	}
	p.by[n] = en
	return true
}

func (p *population) remove(en *entity) {
	if n, ok := p.numbers.Delete(en.key.index()); ok {
		p.by[n] = nil
	}
}

// all are the entities, in an order that a restart changes.
func (p *population) all(yield func(*entity) bool) {
	for _, en := range p.by {
		if en != nil && !yield(en) {
			return
		}
	}
}
