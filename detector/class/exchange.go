package class

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
)

// aheadMost is how much younger than now another gateway's clock may make a record: the bounds drop what was observed least recently, and one of next
// year would outlast all.
const aheadMost = 10 * time.Minute

// Piece is a record that this store's gateway made, as others take it in: a snapshot of it alone.
type Piece struct {
	ID  string // tells the gateway's records apart: a hash
	Raw []byte
	of  version
}

// version of a record: a later one has more.
type version struct {
	last  int64
	count uint64
}

func (r *record) version() version { return version{r.last, r.count} }

// Ledger is which versions of its own records a gateway has given to others. The zero Ledger has given none.
type Ledger struct{ given map[string]version }

// Gave notes that a piece was given.
func (l *Ledger) Gave(p Piece) {
	if l.given == nil {
		l.given = map[string]version{}
	}
	l.given[p.ID] = p.of
}

// Forgot notes that a record is no more where others find it.
func (l *Ledger) Forgot(id string) { delete(l.given, id) }

func pieceID(k Key, run string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q", fmt.Sprintf("%+v", k), run)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Changed lists what this gateway made and the ledger does not have in this version, at most so many, in order of ID, and the IDs of records that the
// store has dropped since they were given.
func (s *Store) Changed(l *Ledger, most int) (set []Piece, gone []string) {
	here := map[string]bool{}
	for k, c := range s.classes {
		for n, r := range c {
			if n.writer != s.cfg.Writer {
				continue
			}
			id := pieceID(k, n.run)
			here[id] = true
			if given, ok := l.given[id]; ok && given == r.version() || len(set) >= most {
				continue
			}
			one := Store{cfg: s.cfg, classes: map[Key]map[name]*record{k: {n: r}}, n: 1}
			set = append(set, Piece{id, one.Snapshot(), r.version()})
		}
	}
	for id := range l.given {
		if !here[id] {
			gone = append(gone, id)
		}
	}
	slices.SortFunc(set, func(a, b Piece) int { return cmp.Compare(a.ID, b.ID) })
	slices.Sort(gone)
	return set, gone
}

// Take merges a piece that lies under a gateway's name and an id. It is refused, and the store is as it was, where it is malformed or of another version of
// the format, holds anything but one record of that gateway and id, or is younger than now, ns. A piece of the store's own gateway is what it gave before: what it
// lost meanwhile it has again, and the ledger notes it.
func (s *Store) Take(l *Ledger, writer, id string, raw []byte, now int64) error {
	in := &Store{cfg: s.cfg, classes: map[Key]map[name]*record{}}
	if err := in.Restore(raw); err != nil {
		return err
	}
	if in.n != 1 {
		return fmt.Errorf("classes: %d records in a piece: one is wanted", in.n)
	}
	for k, c := range in.classes {
		for n, r := range c {
			switch {
			case n.writer != bounded(writer):
				return fmt.Errorf("classes: a record of gateway %q lies under the name of %q", n.writer, writer)
			case id != pieceID(k, n.run):
				return errors.New("classes: a record lies under another's id")
			case r.last > now+int64(aheadMost):
				return fmt.Errorf("classes: a record of gateway %q is %s ahead of this gateway's clock", n.writer, time.Duration(r.last-now).Round(time.Second))
			}
			if n.writer == s.cfg.Writer {
				l.Gave(Piece{ID: id, of: r.version()})
			}
		}
	}
	s.Merge(in)
	return nil
}
