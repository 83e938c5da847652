package bus

import (
	"context"
	"fmt"
)

// ConditionsNow reads the last value of each condition, once, also of those that were cleared. The order is that of the stream.
func (b *Bus) ConditionsNow(ctx context.Context) ([]Condition, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	current, ended := make(chan struct{}), make(chan error, 1)
	type id struct{ node, gateway, key string }
	at := map[id]int{}
	var all []Condition
	go func() {
		ended <- b.Conditions(ctx, current, func(c Condition) {
			k := id{c.Node, c.Gateway, c.Key}
			if i, known := at[k]; known {
				all[i] = c
				return
			}
			at[k] = len(all)
			all = append(all, c)
		})
	}()
	select {
	case <-current:
		cancel()
		<-ended // nothing is written to all any more
		return all, nil
	case err := <-ended:
		if err == nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("read conditions: %w", err)
	}
}
