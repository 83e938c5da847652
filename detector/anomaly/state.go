package anomaly

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

// A snapshot is a magic number, a version, the lengths of its three parts, the parts (an index as JSON and the series engines'
// own snapshots), and a CRC-32C of all before it.
const (
	snapshotMagic   = "PCANOMLY"
	snapshotVersion = 1
	snapshotHead    = len(snapshotMagic) + 4*4
	maxSnapshot     = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Changed reports whether what is open changed since the last Snapshot: then a new one should not wait.
func (e *Engine) Changed() bool { return e.changed }

// Snapshot gives the whole state.
func (e *Engine) Snapshot() []byte {
	e.changed = false
	x := savedIndex{Boot: e.o.BootID, Now: e.now, Shift: e.shift, Said: e.statements}
	for _, en := range e.sorted() {
		x.Entities = append(x.Entities, e.saveEntity(en))
	}
	index, _ := json.Marshal(x)
	parts := [][]byte{index, e.engines[training].Snapshot(), e.engines[facility].Snapshot()}
	b := append([]byte(nil), snapshotMagic...)
	b = binary.LittleEndian.AppendUint32(b, snapshotVersion)
	for _, p := range parts {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
	}
	for _, p := range parts {
		b = append(b, p...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func (e *Engine) saveEntity(en *entity) savedEntity {
	s := savedEntity{
		About: en.key.about, ID: en.key.id, Rank: en.key.rank, Target: en.target, Seen: en.seen, Attempt: en.attempt, Step: float(en.step),
		Ckpt: float(en.ckpt), Warm: en.warm, Pace: float(en.pace), Work: en.work, WorkAt: float(en.workAt),
	}
	for r, slot := range en.slots {
		if slot == 0 {
			continue
		}
		tr := e.tracks[slot-1]
		s.Series = append(s.Series, savedTrack{
			Signal: Catalogue[r].Name, Profile: tr.profile, SID: tr.sid, T: tr.t, Since: tr.since, N: tr.n, Every: float(tr.every),
			Raw: float(tr.ring[(tr.at+ringSize-1)%ringSize].raw),
		})
	}
	for _, m := range en.members {
		if m.gone {
			continue
		}
		var flags uint8
		for bit, on := range map[uint8]bool{savedTold: m.told, savedCertain: m.certain, savedAbsent: m.absent, savedUp: m.up, savedWatch: m.watch} {
			if on {
				flags |= bit
			}
		}
		s.Members = append(s.Members, savedMember{
			Signal: m.signal().Name, Report: m.report.save(), Onset: m.onset, Value: float(m.value), Expected: float(m.expected), Lower: float(m.lower),
			Upper: float(m.upper), Score: float(m.score), Baseline: m.baseline, Shape: m.shape, Phase: m.phase, PromQL: m.promql,
			Age: m.age, AgeS: float(m.ageS), Samples: m.samples, Z: float(m.z), Flags: flags, State: m.state, Level: float(m.level), Lost: float(m.lost),
		})
	}
	for _, c := range en.stories {
		st := savedStory{Pattern: c.pattern.Name, Report: c.report.save(), Onset: c.onset, State: c.state}
		for _, w := range c.witnesses {
			name := w.signal().Name
			if w.tr.ent != en {
				name = "rank:" + name
			}
			if !w.gone {
				st.Witnesses = append(st.Witnesses, name)
			}
		}
		s.Stories = append(s.Stories, st)
	}
	return s
}

func (r *report) save() savedReport {
	return savedReport{Said: r.said, Dropped: r.dropped, Ack: r.ack, Severity: r.severity}
}

// Restore takes up what an earlier engine left. It gives the conditions that were open back to be set again: the earlier engine may
// have ended before it could. Findings of another boot are left out, and their series kept. Where the series themselves cannot
// be read (another build, another asked rate), they are learnt anew, and what was open ends when its values are back in the band
// that was expected then. On an error the engine is as it was.
func (e *Engine) Restore(b []byte) ([]finding.Finding, error) {
	parts, err := unpack(b)
	if err != nil {
		return nil, fmt.Errorf("anomalies: snapshot: %w", err)
	}
	var x savedIndex
	if err := json.Unmarshal(parts[0], &x); err != nil {
		return nil, fmt.Errorf("anomalies: snapshot: index: %w", err)
	}
	n, err := New(e.o)
	if err != nil {
		return nil, err
	}
	n.now, n.shift, n.infoAt = x.Now, x.Shift, x.Now
	if n.statements = e.statements; !e.heardPeople {
		n.statements = x.Said[:min(len(x.Said), statement.Most)]
	}
	n.heardPeople = e.heardPeople
	n.quiet = n.now + int64(settle)
	whole := n.engines[training].Restore(parts[1]) == nil && n.engines[facility].Restore(parts[2]) == nil
	if !whole {
		if err := n.fresh(); err != nil {
			return nil, err
		}
	}
	used := map[[2]uint32]bool{}
	for i := range x.Entities {
		if err := n.restoreEntity(&x.Entities[i], whole, x.Boot == e.o.BootID, used); err != nil {
			return nil, fmt.Errorf("anomalies: snapshot: %w", err)
		}
	}
	for _, en := range n.sorted() {
		n.link(en)
	}
	if x.Boot == e.o.BootID {
		for i := range x.Entities {
			n.restoreStories(&x.Entities[i])
		}
	}
	for p := training; p < profiles; p++ { // numbers that no series holds are free
		for id := range n.engines[p].Len() {
			if !used[[2]uint32{uint32(p), uint32(id)}] {
				n.freed[p] = append(n.freed[p], series.ID(id))
			}
		}
	}
	*e = *n
	for _, r := range e.reports {
		if r.said != "" {
			e.tell(r, r.event(e), true, true)
		}
	}
	out := e.out
	e.out, e.recheck, e.changed = nil, true, false
	return out, nil
}

func unpack(b []byte) (parts [3][]byte, err error) {
	if len(b) < snapshotHead+4 || len(b) > maxSnapshot || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return parts, errors.New("not one of this engine")
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return parts, errors.New("checksum differs")
	}
	if v := binary.LittleEndian.Uint32(body[len(snapshotMagic):]); v != snapshotVersion {
		return parts, fmt.Errorf("version %d of another build", v)
	}
	rest := body[snapshotHead:]
	for i := range parts {
		n := binary.LittleEndian.Uint32(body[len(snapshotMagic)+4+4*i:])
		if uint64(n) > uint64(len(rest)) {
			return parts, errors.New("cut short")
		}
		parts[i], rest = rest[:n], rest[n:]
	}
	if len(rest) != 0 {
		return parts, errors.New("longer than it says")
	}
	return parts, nil
}

var rowOf = func() map[string]row {
	m := map[string]row{}
	for i, s := range Catalogue {
		if s.Name != "" {
			m[s.Name] = row(i)
		}
	}
	return m
}()

var rowStepTime, rowCompute = rowOf["step-time"], rowOf["compute"]

func (e *Engine) restoreEntity(s *savedEntity, whole, sameBoot bool, used map[[2]uint32]bool) error {
	k := entityKey{s.About, s.ID, s.Rank}
	if s.About > Port || s.ID == "" || e.ents.of(k) != nil {
		return fmt.Errorf("entity %q is malformed or held twice", s.ID)
	}
	en := &entity{
		key: k, target: s.Target, seen: s.Seen, attempt: s.Attempt, section: -1, step: float64(s.Step), stepAge: math.NaN(), ckpt: float64(s.Ckpt),
		warm: s.Warm, pace: float64(s.Pace), work: s.Work, workAt: float64(s.WorkAt), busy: math.NaN(), quiet: e.now + int64(settle),
	}
	if !e.ents.add(en) {
		return fmt.Errorf("entity %q is beyond the bound", s.ID)
	}
	for _, st := range s.Series {
		r, ok := rowOf[st.Signal]
		if !ok || Catalogue[r].About != s.About { // a signal of another build's catalogue
			continue
		}
		slot, ok := e.slot(en, r)
		if !ok {
			return errors.New("more series than the bound")
		}
		tr := e.tracks[slot]
		tr.t, tr.since = st.T, st.Since
		tr.every = float32(st.Every)
		tr.ring[0] = value{st.T, float64(st.Raw), float64(st.Raw)}
		tr.at, tr.n = 1, 1
		id := [2]uint32{uint32(st.Profile), uint32(st.SID)}
		if whole && (st.Profile == training || st.Profile == facility) && int(st.SID) < e.engines[st.Profile].Len() && !used[id] {
			tr.profile, tr.sid, used[id] = st.Profile, st.SID, true
			e.engines[tr.profile].SetBad(tr.sid, Catalogue[r].Bad) // as this build has it
		}
	}
	if sameBoot {
		for i := range s.Members {
			e.restoreMember(en, &s.Members[i])
		}
	}
	return nil
}

func (e *Engine) restoreMember(en *entity, s *savedMember) {
	r, ok := rowOf[s.Signal]
	if !ok || en.slots[r] == 0 {
		return
	}
	tr := e.tracks[en.slots[r]-1]
	if tr.m != nil {
		return
	}
	m := &member{
		tr: tr, onset: s.Onset, value: float64(s.Value), expected: float64(s.Expected), lower: float64(s.Lower), upper: float64(s.Upper),
		score: float64(s.Score), baseline: s.Baseline, shape: s.Shape, phase: s.Phase, promql: s.PromQL, age: s.Age,
		ageS: float64(s.AgeS), samples: s.Samples, z: float64(s.Z), state: s.State, level: float64(s.Level), lost: float64(s.Lost),
		told: s.Flags&savedTold != 0, certain: s.Flags&savedCertain != 0, absent: s.Flags&savedAbsent != 0, up: s.Flags&savedUp != 0, watch: s.Flags&savedWatch != 0,
	}
	if len(m.samples) > event.MaxSamples {
		m.samples = m.samples[:event.MaxSamples]
	}
	if m.certain {
		tr.run = certainRow
	} else if !m.watch && !m.absent && (tr.profile == unchosen || !e.engines[tr.profile].Open(tr.sid)) {
		m.watch, m.level = true, m.value // its series has lost its memory
	}
	tr.m = m
	en.members = append(en.members, m)
	m.report = e.report(en, s.Signal, s.Onset)
	m.report.member = m
	m.report.take(s.Report)
}

func (r *report) take(s savedReport) {
	r.said, r.dropped, r.ack, r.changed = s.Said, s.Dropped, s.Ack, false
	if s.Severity.Valid() {
		r.severity = s.Severity
	}
}

func (e *Engine) restoreStories(s *savedEntity) {
	en := e.ents.of(entityKey{s.About, s.ID, s.Rank})
	for _, st := range s.Stories {
		for i := range patterns {
			p := &patterns[i]
			if p.Name != st.Pattern {
				continue
			}
			c := &compound{pattern: p, onset: st.Onset, state: st.State}
			for _, name := range st.Witnesses {
				from := en
				if len(name) > 5 && name[:5] == "rank:" {
					name, from = name[5:], en.rank
				}
				if r, ok := rowOf[name]; ok && from != nil && from.slots[r] != 0 {
					if m := e.tracks[from.slots[r]-1].m; m != nil {
						c.witnesses = append(c.witnesses, m)
					}
				}
			}
			if len(c.witnesses) == 0 {
				continue
			}
			c.lead = c.witnesses[0]
			en.stories = append(en.stories, c)
			c.report = e.report(en, p.Name, st.Onset)
			c.report.compound = c
			c.report.take(st.Report)
			e.judge(en, c)
		}
	}
}
