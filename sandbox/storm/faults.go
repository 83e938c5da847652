package storm

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// fault is what goes wrong on a node: a GPU that is gone takes its rank with it, a GPU with a memory error can still save.
type fault struct {
	code     string
	severity event.Severity
	advice   string
	kills    bool
}

// conditionAgain is how long an agent waits before it sets a condition again that NATS did not acknowledge.
const conditionAgain = 200 * time.Millisecond

var faults = []fault{
	{"79", event.Fatal, "reboot-node", true},
	{"94", event.Critical, "reset-gpu", false},
}

// faultOf makes every third node one that can save, so that both ways of an incident are measured.
func faultOf(order int) fault {
	if order%3 == 2 {
		return faults[1]
	}
	return faults[0]
}

// lane spreads nodes over connections.
func lane(node string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node))
	return int(h.Sum32() % connections)
}

// fail does what the agent of a node does when a GPU fails: it publishes the finding, sets the condition, and reports the rank that died.
func (a *agents) fail(ctx context.Context, node string, f fault) error {
	now := time.Now()
	gpu, src := "GPU-"+node+"-0", event.Source(clusterName, node, "xid")
	e := event.Event{
		ID: event.NewID(src, now.String()), Source: src, Type: event.Fault, Time: now,
		Data: event.Data{Target: event.Target{Cluster: clusterName, Node: node, GPU: gpu, PCI: "0000:17:00"}, Cause: event.Cause{Kind: "xid", Code: f.code},
			Severity: f.severity, Advice: f.advice, Onset: now,
			Evidence: event.Evidence{Signal: "kernel log", Raw: "NVRM: Xid (PCI:0000:17:00): " + f.code + ", pid=1000, name=python"}},
	}
	if err := a.send(lane(node), e); err != nil {
		return err
	}
	if seats := a.at[node]; f.kills && len(seats) > 0 {
		s := seats[0]
		rank := s.index * GPUs
		s.job.mu.Lock()
		attempt := s.job.attempt
		s.job.halt(now)
		s.job.dead[rank] = true
		s.job.mu.Unlock()
		src := event.Source(clusterName, node, "torch")
		d := event.Event{
			ID: event.NewID(src, s.uid, now.String()), Source: src, Type: event.Fault, Time: now,
			Data: event.Data{Target: event.Target{Cluster: clusterName, Node: node, Namespace: jobNamespace, Pod: s.name, PodUID: s.uid, Rank: &rank,
				WorldSize: s.job.world, Attempt: &attempt, Job: &event.Job{APIVersion: "batch/v1", Kind: "Job", Namespace: jobNamespace, Name: s.job.name, UID: s.job.uid}},
				Cause: event.Cause{Kind: "rank", Name: "dead"}, Severity: event.Critical, Onset: now, Evidence: event.Evidence{Signal: "launcher", Raw: "exit code 1"}},
		}
		if err := a.send(lane(node), d); err != nil {
			return err
		}
	}
	c := bus.Condition{Node: node, Key: "xid/" + f.code + " gpu/" + gpu, Active: true, Since: now, BootID: node, Event: &e}
	for {
		err := a.buses[lane(node)].SetCondition(ctx, c)
		if err == nil {
			return nil
		}
		select { // an agent says it until NATS has it
		case <-time.After(conditionAgain):
		case <-ctx.Done():
			return fmt.Errorf("condition of node %s: %w", node, err)
		}
	}
}

// chatter is the n-th of the events that agents publish while nothing is wrong: findings that no rule of the policy acts on.
func chatter(n int, node string, now time.Time) event.Event {
	signals := []struct {
		cause    event.Cause
		kind     event.Type
		severity event.Severity
	}{
		{event.Cause{Kind: "xid", Code: "13"}, event.Fault, event.Warning},
		{event.Cause{Kind: "anomaly", Name: "gpu-temperature"}, event.Anomaly, event.Info},
		{event.Cause{Kind: "train", Name: "slow-step"}, event.Anomaly, event.Warning},
		{event.Cause{Kind: "gpu", Name: "throttled"}, event.Recovery, event.Info},
		{event.Cause{Kind: "nvlink", Name: "errors"}, event.Anomaly, event.Info},
	}
	s := signals[n%len(signals)]
	src := event.Source(clusterName, node, "detector")
	return event.Event{
		ID: event.NewID(src, strconv.Itoa(n)), Source: src, Type: s.kind, Time: now,
		Data: event.Data{Target: event.Target{Cluster: clusterName, Node: node, GPU: fmt.Sprintf("GPU-%s-%d", node, n%GPUs)}, Cause: s.cause,
			Severity: s.severity, Onset: now, Evidence: event.Evidence{Signal: "hw.gpu.temperature", Unit: "Cel", Baseline: "self"}},
	}
}
