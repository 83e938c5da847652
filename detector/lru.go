package detector

import "container/list"

// lru is a map of bounded size: at the bound the entry that was not used for longest goes.
type lru[K comparable, V any] struct {
	max     int
	m       map[K]*list.Element
	order   *list.List // front: used last
	evicted func()
}

type entry[K comparable, V any] struct {
	k K
	v V
}

func newLRU[K comparable, V any](max int, evicted func()) *lru[K, V] {
	return &lru[K, V]{max: max, m: map[K]*list.Element{}, order: list.New(), evicted: evicted}
}

func (l *lru[K, V]) get(k K) (v V, ok bool) {
	el, ok := l.m[k]
	if !ok {
		return v, false
	}
	l.order.MoveToFront(el)
	return el.Value.(entry[K, V]).v, true
}

func (l *lru[K, V]) put(k K, v V) {
	if el, ok := l.m[k]; ok {
		el.Value = entry[K, V]{k, v}
		l.order.MoveToFront(el)
		return
	}
	l.m[k] = l.order.PushFront(entry[K, V]{k, v})
	if l.order.Len() > l.max {
		l.drop(l.order.Back().Value.(entry[K, V]).k)
		l.evicted()
	}
}

func (l *lru[K, V]) drop(k K) {
	if el, ok := l.m[k]; ok {
		l.order.Remove(el)
		delete(l.m, k)
	}
}

// each visits the entries, the one used longest ago first. f may drop the entry it is given.
func (l *lru[K, V]) each(f func(K, V)) {
	for el := l.order.Back(); el != nil; {
		prev := el.Prev()
		en := el.Value.(entry[K, V])
		f(en.k, en.v)
		el = prev
	}
}

func (l *lru[K, V]) len() int { return len(l.m) }
