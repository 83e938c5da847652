package policycmd

import (
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator"
)

func writeComparison(c *remediator.Comparison, say func(string, ...any)) {
	say("\n%d agree, %d differ, %d only Pitcrew, %d only people", len(c.Agree), len(c.Differ), len(c.OnlyPitcrew), len(c.OnlyPeople))
	say("\nWHO\tTIME\tNODE\tPITCREW\tPEOPLE")
	for _, rows := range []struct {
		who   string
		pairs []remediator.Pair
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
