package page

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// killState is the kill switch as it was read last.
type killState struct{ atomic.Pointer[bus.KillSwitch] }

// ill is something that a node reports now.
type ill struct {
	Key, GPU, Boot string
	Severity       event.Severity
}

// maxIll bounds what is kept of one node.
const maxIll = 64

// conditions are what nodes report now.
type conditions struct {
	mu sync.RWMutex
	by map[string][]ill
}

func newConditions() *conditions { return &conditions{by: map[string][]ill{}} }

func (c *conditions) take(x bus.Condition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := clean(x.Key, maxCell)
	left := slices.DeleteFunc(slices.Clone(c.by[x.Node]), func(i ill) bool { return i.Key == key })
	if x.Active && len(left) < maxIll {
		i := ill{Key: key, Boot: x.BootID}
		if x.Event != nil {
			i.GPU, i.Severity = clean(x.Event.Data.Target.GPU, maxCell), x.Event.Data.Severity
		}
		left = append(left, i)
	}
	if len(left) == 0 {
		delete(c.by, x.Node)
		return
	}
	c.by[x.Node] = left
}

// of are the conditions of a node on its present boot. A condition of an earlier boot is history.
func (c *conditions) of(node, boot string) (out []ill) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, i := range c.by[node] {
		if i.Boot == "" || boot == "" || i.Boot == boot {
			out = append(out, i)
		}
	}
	return out
}
