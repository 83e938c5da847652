package policycmd

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator"
)

// deed is something that a person did.
type deed struct {
	Time   time.Time `json:"time"`
	Node   string    `json:"node"`
	Action string    `json:"action"` // cordon, restart-job, …, or any word of one's own
}

// comparison holds would-be incidents against deeds. Each is in one row at most.
type comparison struct {
	Agree       []pair             `json:"agree"`  // the same node, near in time, and the person did one of the actions
	Differ      []pair             `json:"differ"` // the same node, near in time, another action, or a guard stood against it
	OnlyPitcrew []remediator.Would `json:"only_pitcrew"`
	OnlyPeople  []deed             `json:"only_people"`
}

type pair struct {
	Pitcrew remediator.Would `json:"pitcrew"`
	People  deed             `json:"people"`
}

// compare joins each deed with the nearest incident of its node that is left, those of the same action first.
func compare(would []remediator.Would, done []deed, within time.Duration) *comparison {
	c := &comparison{Agree: []pair{}, Differ: []pair{}, OnlyPitcrew: []remediator.Would{}, OnlyPeople: []deed{}}
	taken := map[int]bool{}
	left := done
	join := func(into *[]pair, fits func(remediator.Would, deed) bool) {
		var still []deed
		for _, d := range left {
			best := -1
			for k, w := range would {
				if !taken[k] && w.Node == d.Node && apart(w, d) <= within && fits(w, d) && (best < 0 || apart(w, d) < apart(would[best], d)) {
					best = k
				}
			}
			if best < 0 {
				still = append(still, d)
				continue
			}
			taken[best] = true
			*into = append(*into, pair{would[best], d})
		}
		left = still
	}
	join(&c.Agree, func(w remediator.Would, d deed) bool { return w.Refused == "" && slices.Contains(w.Actions, d.Action) })
	join(&c.Differ, func(remediator.Would, deed) bool { return true })
	c.OnlyPeople = append(c.OnlyPeople, left...)
	for k, w := range would {
		if !taken[k] {
			c.OnlyPitcrew = append(c.OnlyPitcrew, w)
		}
	}
	return c
}

func apart(w remediator.Would, d deed) time.Duration { return w.Time.Sub(d.Time).Abs() }

func (c *comparison) write(say func(string, ...any)) {
	say("\n%d agree, %d differ, %d only Pitcrew, %d only people", len(c.Agree), len(c.Differ), len(c.OnlyPitcrew), len(c.OnlyPeople))
	say("\nWHO\tTIME\tNODE\tPITCREW\tPEOPLE")
	for _, rows := range []struct {
		who   string
		pairs []pair
	}{{"agree", c.Agree}, {"differ", c.Differ}} {
		for _, p := range rows.pairs {
			say("%s\t%s\t%s\t%s\t%s", rows.who, p.Pitcrew.Time.UTC().Format(time.RFC3339), p.People.Node, deedOf(p.Pitcrew), p.People.Action)
		}
	}
	for _, w := range c.OnlyPitcrew {
		say("only Pitcrew\t%s\t%s\t%s\t-", w.Time.UTC().Format(time.RFC3339), w.Node, deedOf(w))
	}
	for _, d := range c.OnlyPeople {
		say("only people\t%s\t%s\t-\t%s", d.Time.UTC().Format(time.RFC3339), d.Node, d.Action)
	}
}

func deedOf(w remediator.Would) string {
	out := strings.Join(w.Actions, ", ")
	if w.Refused != "" {
		out = w.Decision + " (" + out + ")"
	}
	return out
}

// maxDeeds bounds the file of what people did.
const maxDeeds = 100_000

// readDeeds reads CSV with a head that names time, node and action in any order, or JSON lines. Every fault is named by its line.
func readDeeds(name string) ([]deed, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	defer f.Close()
	in := bufio.NewReader(f)
	head, err := in.Peek(1)
	if err != nil {
		return nil, fmt.Errorf("compare %s: it is empty", name)
	}
	read := readCSV
	if head[0] == '{' {
		read = readJSON
	}
	out, err := read(in)
	if err != nil {
		return nil, fmt.Errorf("compare %s: %w", name, err)
	}
	return out, nil
}

func readJSON(in io.Reader) (out []deed, err error) {
	for d := json.NewDecoder(in); len(out) < maxDeeds; {
		var one deed
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err == nil {
			err = one.check()
		}
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", len(out)+1, err)
		}
		out = append(out, one)
	}
	return nil, fmt.Errorf("more than %d entries", maxDeeds)
}

func readCSV(in io.Reader) (out []deed, err error) {
	r := csv.NewReader(in)
	r.TrimLeadingSpace, r.Comment = true, '#'
	head, err := r.Read()
	if err != nil {
		return nil, err
	}
	column := map[string]int{}
	for k, name := range head {
		column[strings.ToLower(strings.TrimSpace(name))] = k
	}
	for _, want := range []string{"time", "node", "action"} {
		if _, there := column[want]; !there {
			return nil, fmt.Errorf("no column %q; the first line names time, node and action", want)
		}
	}
	for len(out) < maxDeeds {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := r.FieldPos(0)
		d := deed{Node: strings.TrimSpace(row[column["node"]]), Action: strings.TrimSpace(row[column["action"]])}
		if d.Time, err = time.Parse(time.RFC3339, strings.TrimSpace(row[column["time"]])); err == nil {
			err = d.check()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		out = append(out, d)
	}
	return nil, fmt.Errorf("more than %d lines", maxDeeds)
}

func (d deed) check() error {
	if d.Time.IsZero() || d.Node == "" || d.Action == "" {
		return errors.New("it wants a time such as 2026-11-21T22:00:00Z, a node and an action")
	}
	return nil
}
