package anomalycmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
)

// look is how often it is looked whether a gateway heard.
const look = 100 * time.Millisecond

// answered waits until the gateways of findings have heard a statement, or for so long. It gives those that did not. Agents are not waited
// for: they tell nothing of a mute.
func answered(ctx context.Context, b *bus.Bus, st bus.Statement, undone bool, fs []finding, within time.Duration) ([]finding, error) {
	waiting := slices.DeleteFunc(slices.Clone(fs), func(f finding) bool { return f.Source != gateway || !f.levelled(st.Verb) })
	if len(waiting) == 0 {
		return nil, nil
	}
	limit, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		now, _, err := b.Found(ctx)
		if err != nil {
			return nil, err
		}
		waiting = slices.DeleteFunc(waiting, func(f finding) bool {
			i := slices.IndexFunc(now, func(c bus.Condition) bool { return c.Gateway == f.Gateway && c.Key == f.Key })
			switch {
			case i < 0: // it is over
				return true
			case st.Verb == bus.StateAccept:
				return false
			}
			return slices.Contains(now[i].Event.Data.Evidence.Told, words(st)) != undone
		})
		if len(waiting) == 0 {
			return nil, nil
		}
		select {
		case <-limit.Done():
			return waiting, ctx.Err()
		case <-time.After(look):
		}
	}
}

// unanswered says who did not hear, and what to do.
func unanswered(fs []finding, within time.Duration) error {
	if len(fs) == 0 {
		return nil
	}
	var who []string
	for _, f := range fs {
		if w := fmt.Sprintf("%s (which told of it last %s ago)", f.Gateway, time.Since(f.Heard).Round(time.Second)); !slices.Contains(who, w) {
			who = append(who, w)
		}
	}
	return fmt.Errorf("nobody answered within %s: gateway %s. What you said is kept, and holds as soon as it is heard: "+
		"look whether the gateway runs and reaches NATS, and at `pitcrew anomaly list`", within, strings.Join(who, ", "))
}
