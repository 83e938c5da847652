package rules

import (
	"cmp"
	"embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed *.tsv
var files embed.FS

// Tables holds all rows. Build one with Builtin or Override; it does not change.
type Tables struct {
	xid      map[int]XID
	sxid     map[int]SXid
	nvlink5  map[nvlinkKey]NVLink5
	byXID    map[int][]NVLink5
	recovery map[string]Recovery
	signal   map[signalKey]Signal
}

type (
	nvlinkKey struct {
		xid         int
		unit        string
		before      BitPattern
		errorStatus uint32
	}
	signalKey struct{ kind, name string }
)

func (r NVLink5) key() nvlinkKey { return nvlinkKey{r.XID, r.Unit, r.Before575, r.ErrorStatus} }

// Builtin returns the tables compiled in. They are read once.
var Builtin = sync.OnceValues(func() (*Tables, error) {
	t := &Tables{}
	err := cmp.Or(
		load("xid.tsv", xidColumns, &t.xid, func(r XID) int { return r.Code }),
		load("sxid.tsv", sxidColumns, &t.sxid, func(r SXid) int { return r.Code }),
		load("nvlink5.tsv", nvlink5Columns, &t.nvlink5, NVLink5.key),
		load("recovery.tsv", recoveryColumns, &t.recovery, func(r Recovery) string { return r.Action }),
		load("signals.tsv", signalColumns, &t.signal, func(r Signal) signalKey { return signalKey{r.Kind, r.Name} }),
	)
	if err != nil {
		return nil, err
	}
	for k, r := range t.xid {
		r.Known = true
		t.xid[k] = r
	}
	for k, r := range t.sxid {
		r.Known = true
		t.sxid[k] = r
	}
	for k, r := range t.recovery {
		r.Known = true
		t.recovery[k] = r
	}
	return t, t.finish()
})

// load reads a compiled-in table into *to.
func load[K comparable, R any](file string, columns []column[R], to *map[K]R, key func(R) K) error {
	data, err := files.ReadFile(file)
	if err != nil {
		return err
	}
	rows, err := readTable(file, string(data), columns, key)
	*to = rows
	return err
}

// readTable reads tab-separated rows under a header line; # starts a comment line.
func readTable[K comparable, R any](file, data string, columns []column[R], key func(R) K) (map[K]R, error) {
	rows := make(map[K]R)
	header := false
	n := 0
	for line := range strings.Lines(data) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || line[0] == '#' {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) != len(columns) {
			return nil, fmt.Errorf("%s:%d: %d columns where %d are wanted", file, n, len(cells), len(columns))
		}
		if !header {
			header = true
			for i, c := range columns {
				if cells[i] != c.name {
					return nil, fmt.Errorf("%s:%d: column %d is %q, not %q", file, n, i+1, cells[i], c.name)
				}
			}
			continue
		}
		var row R
		for i, c := range columns {
			if cells[i] == "" {
				if c.required {
					return nil, fmt.Errorf("%s:%d: %s is empty", file, n, c.name)
				}
				continue
			}
			if err := c.set(&row, cells[i]); err != nil {
				return nil, fmt.Errorf("%s:%d: %s: %w", file, n, c.name, err)
			}
		}
		k := key(row)
		if _, twice := rows[k]; twice {
			return nil, fmt.Errorf("%s:%d: %v is there twice", file, n, k)
		}
		rows[k] = row
	}
	if !header {
		return nil, fmt.Errorf("%s: no header line", file)
	}
	return rows, nil
}

// finish checks what spans rows and builds the lookup by code.
func (t *Tables) finish() error {
	for _, r := range t.xid {
		if (r.Role == Clear) != (r.Clears != 0) {
			return fmt.Errorf("xid %d: role clear and a code in clears go together", r.Code)
		}
		if _, ok := t.xid[r.Clears]; r.Clears != 0 && !ok {
			return fmt.Errorf("xid %d: clears %d, which is not in the table", r.Code, r.Clears)
		}
	}
	for _, r := range t.sxid {
		if _, ok := t.sxid[r.Clears]; r.Clears != 0 && !ok {
			return fmt.Errorf("sxid %d: clears %d, which is not in the table", r.Code, r.Clears)
		}
	}
	values := make(map[int]string)
	for _, r := range t.Recoveries() {
		if other, twice := values[r.Value]; twice {
			return fmt.Errorf("recovery %q: %d is the value of %q", r.Action, r.Value, other)
		}
		values[r.Value] = r.Action
	}
	t.byXID = make(map[int][]NVLink5)
	for _, r := range t.nvlink5 {
		if r.XID < FirstNVLink5 || r.XID > LastNVLink5 {
			return fmt.Errorf("nvlink5 %s: only lines of xid %d to %d are decoded, not of %d", r.Unit, FirstNVLink5, LastNVLink5, r.XID)
		}
		t.byXID[r.XID] = append(t.byXID[r.XID], r)
	}
	for _, rows := range t.byXID {
		slices.SortFunc(rows, func(a, b NVLink5) int {
			return cmp.Or(cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.Before575.Value, b.Before575.Value), cmp.Compare(a.ErrorStatus, b.ErrorStatus), cmp.Compare(a.Before575.Mask, b.Before575.Mask))
		})
	}
	return nil
}

// XID returns the row of an Xid code; an unknown code gives a row with Known false.
func (t *Tables) XID(code int) XID {
	if r, ok := t.xid[code]; ok {
		return r
	}
	return XID{Code: code, Name: "unknown", Class: "unknown", Severity: Warning, Advice: ContactSupport,
		AppCaused: AppUnknown, Role: Cause, Note: "This code is not in the table; newer drivers add codes."}
}

// SXid returns the row of an SXid code; an unknown code gives a row with Known
// false, whose severity is the line's own word.
func (t *Tables) SXid(code int) SXid {
	if r, ok := t.sxid[code]; ok {
		return r
	}
	return SXid{Code: code, Name: "unknown", Block: "unknown", Fatality: ByLine, Advice: ContactSupport,
		AdviceNonFatal: ContactSupport, Note: "This code is not in the table; newer drivers add codes."}
}

// NVLink5 finds the decode rule for an Xid of 144 to 150 by its unit and the
// first two registers of its line. driver is the driver's major version; 0
// where it is not known, and then both branches' patterns are tried, which the
// unit's name keeps from being ambiguous.
func (t *Tables) NVLink5(xid int, unit string, intrinfo, errorStatus uint32, driver int) (NVLink5, bool) {
	for _, r := range t.byXID[xid] {
		if !r.AnyStatus && r.ErrorStatus != errorStatus || !r.names(unit) {
			continue
		}
		before, from := r.Before575.Match(intrinfo), r.From575.Match(intrinfo)
		if driver > 0 && driver < 575 && before || driver >= 575 && from || driver <= 0 && (before || from) {
			return r, true
		}
	}
	return NVLink5{}, false
}

// Recovery returns the row of a recovery action by the words Xid 154 prints; an
// action the table does not know is taken for a serious one.
func (t *Tables) Recovery(action string) Recovery {
	if r, ok := t.recovery[action]; ok {
		return r
	}
	return Recovery{Value: -1, Action: action, Severity: Critical, Advice: ContactSupport,
		Note: "This action is not in the table; newer drivers add actions."}
}

// RecoveryOf returns the row of a recovery action by the value of the driver's field; one the table does not know is taken for a serious one.
func (t *Tables) RecoveryOf(value int) Recovery {
	for _, r := range t.recovery {
		if r.Value == value {
			return r
		}
	}
	r := t.Recovery("action " + strconv.Itoa(value))
	r.Value = value
	return r
}

// Signal returns the row of a kernel line without a code.
func (t *Tables) Signal(kind, name string) Signal {
	if r, ok := t.signal[signalKey{kind, name}]; ok {
		return r
	}
	return Signal{Kind: kind, Name: name, Severity: Warning, Advice: ContactSupport}
}

// XIDs returns all Xid rows by code.
func (t *Tables) XIDs() []XID { return sorted(t.xid) }

// SXids returns all SXid rows by code.
func (t *Tables) SXids() []SXid { return sorted(t.sxid) }

// NVLink5Rules returns the decode rules of one Xid code.
func (t *Tables) NVLink5Rules(xid int) []NVLink5 { return slices.Clone(t.byXID[xid]) }

// Recoveries returns the recovery actions by value.
func (t *Tables) Recoveries() []Recovery {
	all := slices.Collect(maps.Values(t.recovery))
	slices.SortFunc(all, func(a, b Recovery) int { return cmp.Or(cmp.Compare(a.Value, b.Value), cmp.Compare(a.Action, b.Action)) })
	return all
}

// Signals returns the rows of lines without a code, by kind and name.
func (t *Tables) Signals() []Signal {
	all := slices.Collect(maps.Values(t.signal))
	slices.SortFunc(all, func(a, b Signal) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return all
}

func sorted[R any](rows map[int]R) []R {
	all := make([]R, 0, len(rows))
	for _, k := range slices.Sorted(maps.Keys(rows)) {
		all = append(all, rows[k])
	}
	return all
}

// String gives the pattern as the table writes it.
func (p BitPattern) String() string {
	var b strings.Builder
	for i := 31; i >= 0; i-- {
		switch {
		case p.Mask>>i&1 == 0:
			b.WriteByte('-')
		default:
			b.WriteString(strconv.Itoa(int(p.Value >> i & 1)))
		}
	}
	return b.String()
}
