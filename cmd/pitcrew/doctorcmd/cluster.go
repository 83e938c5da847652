package doctorcmd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/statuscmd"
	kube "github.com/pitcrew/pitcrew/remediator/cluster"
)

// Kubernetes minor versions: the first that Pitcrew can act on, and the first that steers replacements without a webhook.
const (
	leastMinor = 30
	steerMinor = 36
)

// clusterChecks ask the API server and NATS.
func clusterChecks(survey *kube.Survey, f *connect.Flags) []check {
	return []check{
		{"API server", func(ctx context.Context) (answer, error) {
			address, version, err := survey.Server(ctx)
			if err != nil {
				return bad(err.Error(), "check the kubeconfig, and that the API server can be reached from here")
			}
			found := version + " at " + address
			switch minor := minorOf(version); {
			case minor < 0:
				return answer{}, fmt.Errorf("cannot read version %q", version)
			case minor < leastMinor:
				return bad(found, fmt.Sprintf("Pitcrew needs Kubernetes 1.%d to act", leastMinor))
			case minor < steerMinor:
				return ok(found + ": replacements need the webhook")
			}
			return ok(found)
		}},
		{"steering", func(ctx context.Context) (answer, error) {
			how, why, err := survey.Steering(ctx)
			if err != nil {
				return answer{}, err
			}
			if how == kube.SteerCordon {
				return warn(why, "until then, the scheduler chooses nodes for replacements")
			}
			return ok("replacements are steered by the " + string(how))
		}},
		{"JobSet", func(ctx context.Context) (answer, error) {
			served, err := survey.JobSet(ctx)
			if err != nil {
				return answer{}, err
			}
			if !served {
				return ok("not installed; Indexed Jobs are healed")
			}
			return ok("served")
		}},
		{"role", func(ctx context.Context) (answer, error) {
			observe, err := survey.Role(ctx, "observe")
			if err != nil {
				return answer{}, err
			}
			enforce, err := survey.Role(ctx, "enforce")
			switch {
			case err != nil:
				return answer{}, err
			case !observe:
				return bad("the remediator has no role", "install the chart, or apply deploy/rbac.yaml")
			case !enforce:
				return ok("observe: it reads, and changes no node, pod or job")
			}
			return ok("observe and enforce: it can act")
		}},
		{"opt-in", func(ctx context.Context) (answer, error) {
			names, err := survey.HealedNamespaces(ctx)
			switch {
			case err != nil:
				return answer{}, err
			case len(names) == 0:
				return warn("no namespace is labeled "+kube.LabelHeal+"=true", "label a namespace or a job; until then no job is healed, and nodes are only quarantined")
			}
			return ok(strings.Join(names, ", "))
		}},
		{"remediator", func(ctx context.Context) (answer, error) {
			holder, renewed, valid, err := survey.Leader(ctx)
			switch {
			case errors.Is(err, kube.ErrNotFound):
				return bad("none has ever led in namespace "+survey.Namespace(), "install it, or give its namespace by --namespace")
			case err != nil:
				return answer{}, err
			case !valid:
				return bad(fmt.Sprintf("no leader; %q renewed the lease last, %s ago", holder, time.Since(renewed).Round(time.Second)), "kubectl -n "+survey.Namespace()+" logs deploy/pitcrew-remediator")
			}
			return ok(holder + " leads")
		}},
		{"NATS and agents", func(ctx context.Context) (answer, error) {
			var a answer
			fleet, noFleet := survey.Fleet(ctx) // first: a NATS that does not answer must not use up the time for it
			err := f.Open(ctx, func(ctx context.Context, b *bus.Bus) error {
				a = heard(statuscmd.Collect(ctx, b, time.Now()), fleet, noFleet)
				return nil
			})
			if err != nil {
				return bad(err.Error(), "docs/install.md, \"Does it work\"")
			}
			return a, nil
		}},
	}
}

// heard compares the agents that report with the nodes that have GPUs.
func heard(s statuscmd.Status, fleet kube.Fleet, noFleet error) answer {
	found := fmt.Sprintf("%d agents report", s.Agents.Heard)
	switch {
	case noFleet != nil:
		return answer{Unknown, found + "; " + noFleet.Error(), "check that the account may list nodes"}
	case s.Agents.Heard == 0 && fleet.GPU > 0:
		return answer{Bad, fmt.Sprintf("no agent reports; %d nodes have GPUs", fleet.GPU), "check the DaemonSet's pods, and that they reach NATS"}
	case s.Agents.Heard < fleet.GPU:
		return answer{Warn, fmt.Sprintf("%s; %d nodes have GPUs", found, fleet.GPU), "nodes without an agent are not watched: check the DaemonSet's tolerations and node selector"}
	}
	found += fmt.Sprintf("; %d of %d nodes have GPUs, %d quarantined", fleet.GPU, fleet.Nodes, fleet.Quarantined)
	if len(s.Problems) > 0 {
		return answer{Warn, found + "; " + s.Problems[0], "pitcrew status"}
	}
	return answer{grade: OK, found: found}
}

// minorOf reads 36 of v1.36.3; -1 if it is no version of Kubernetes 1.
func minorOf(version string) int {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 2 || parts[0] != "1" {
		return -1
	}
	digits := strings.TrimRight(parts[1], "+")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return n
}
