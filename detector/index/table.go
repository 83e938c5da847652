// Package index gives labels dense numbers: 0, 1, 2 and so on below a bound, so that what is kept of them lies in slices, and a batch
// can be walked in the order of memory.
//
// It promises: a number is one key's alone for as long as that key is held, because keys are compared in full, whatever their hashes
// are; who chooses labels cannot make look-ups slow, because the hash is seeded anew for each table; the numbers depend on what was put
// in and taken out, in which order, and never on the seed; memory is bounded; a look-up and a removal allocate nothing.
//
// Keys that come in the order in which they came before, as those of a scrape do, need no hash: the one that followed last time is compared
// first, as long as such guesses hold. A guess is right or costs a comparison; it never changes an answer.
//
// A fingerprint of 128 bits in a key's stead would save the comparison, and with it the promise: maphash makes none about how independent
// two of its seeds are. In a batch that comes in the order of numbers the keys are read in the order of memory, and cost little.
//
// It does not choose whom to drop at the bound, and it knows no time: that is its user's. A Table is used by one goroutine at a time.
package index

import (
	"fmt"
	"hash/maphash"
	"math/bits"
)

// Key is what is told apart: something of a class, by name and number, such as a rank of a pod. Length of the name is its user's to bound.
type Key struct {
	Name  string
	N     int64
	Class uint8
}

// MaxKeys is the largest bound of a table.
const MaxKeys = 1 << 30

// minSlots fill a cache line.
const minSlots = 8

// slot is a place of the open-addressing table, probed in a row. Eight share a cache line and at most half of all are in use, so that
// most look-ups touch one line, and then the key that is sought: a stranger's hash is the same once in four billion.
type slot struct {
	hash uint32
	id   uint32 // number + 1; 0: empty
}

// Table gives keys their numbers.
type Table struct {
	most  int
	hash  hash
	slots []slot  // a power of two of them
	keys  []entry // by number
	free  []uint32
	last  uint32 // number that was looked up last
	sure  bool   // the guess that was due then was right
}

// entry is a number's key, and the number that was looked up after it the last time.
type entry struct {
	key  Key
	held bool
	next uint32
}

// hash is seeded: maphash for the name, and a multiplication by a secret odd number, folded, for the rest.
type hash struct {
	seed   maphash.Seed
	secret uint64
}

func newHash() hash { return hash{maphash.MakeSeed(), maphash.String(maphash.MakeSeed(), "") | 1} }

func (h *hash) of(k *Key) uint32 {
	hi, lo := bits.Mul64(maphash.String(h.seed, k.Name)^uint64(k.N)<<1^uint64(k.Class), h.secret)
	return uint32(hi ^ lo)
}

// New makes a table of at most that many keys. It starts small and doubles.
func New(most int) (*Table, error) {
	if most < 1 || most > MaxKeys {
		return nil, fmt.Errorf("index of %d keys: the bound must be between 1 and %d", most, MaxKeys)
	}
	return &Table{most: most, hash: newHash(), slots: make([]slot, minSlots)}, nil
}

// Len is how many keys are held.
func (t *Table) Len() int { return len(t.keys) - len(t.free) }

// Find gives the number of a key; false: it is not held.
func (t *Table) Find(k Key) (uint32, bool) {
	if t.sure {
		id := t.keys[t.last].next
		if e := &t.keys[id]; e.held && e.key == k {
			t.last = id
			return id, true
		}
	}
	i, ok := t.find(&k, t.hash.of(&k))
	if !ok {
		return 0, false
	}
	id := t.slots[i].id - 1
	t.follow(id)
	return id, true
}

// follow notes what came after the last number.
func (t *Table) follow(id uint32) {
	e := &t.keys[t.last]
	t.sure = e.next == id
	e.next, t.last = id, id
}

// find gives the place of a key, or the empty one where the search for it ends.
func (t *Table) find(k *Key, h uint32) (int, bool) {
	slots := t.slots
	mask := len(slots) - 1
	for i := int(h) & mask; ; i = (i + 1) & mask {
		switch s := slots[i]; {
		case s.id == 0:
			return i, false
		case s.hash == h && t.keys[s.id-1].key == *k:
			return i, true
		}
	}
}

// Put gives the number of a key, and takes the key in where it is new: under the number that was given back last, else under the next
// that was never given. False: it is new and the table is at its bound.
func (t *Table) Put(k Key) (uint32, bool) {
	h := t.hash.of(&k)
	i, ok := t.find(&k, h)
	if ok {
		id := t.slots[i].id - 1
		t.follow(id)
		return id, true
	}
	if t.Len() >= t.most {
		return 0, false
	}
	if 2*(t.Len()+1) > len(t.slots) {
		t.grow()
		i, _ = t.find(&k, h)
	}
	id := uint32(len(t.keys))
	if n := len(t.free); n > 0 {
		id, t.free = t.free[n-1], t.free[:n-1]
		t.keys[id].key, t.keys[id].held = k, true
	} else {
		t.keys = append(t.keys, entry{key: k, held: true})
	}
	t.slots[i] = slot{h, id + 1}
	t.follow(id)
	return id, true
}

func (t *Table) grow() {
	old := t.slots
	t.slots = make([]slot, 2*len(old))
	mask := len(t.slots) - 1
	for _, s := range old {
		if s.id == 0 {
			continue
		}
		i := int(s.hash) & mask
		for t.slots[i].id != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = s
	}
}

// Delete takes a key out and gives the number that it had, which the next new key gets; false: it was not held.
func (t *Table) Delete(k Key) (uint32, bool) {
	gap, ok := t.find(&k, t.hash.of(&k))
	if !ok {
		return 0, false
	}
	id := t.slots[gap].id - 1
	mask := len(t.slots) - 1
	for i := (gap + 1) & mask; t.slots[i].id != 0; i = (i + 1) & mask { // what lies behind moves towards its home: there are no tombstones
		if s := t.slots[i]; (i-int(s.hash))&mask >= (i-gap)&mask {
			t.slots[gap], gap = s, i
		}
	}
	t.slots[gap], t.keys[id] = slot{}, entry{next: t.keys[id].next}
	t.free = append(t.free, id)
	return id, true
}
