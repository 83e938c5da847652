package remediator

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// leaseKept is for how long no remediator may lead after an uninstall: until whoever called it has removed them.
const leaseKept = time.Minute

// Uninstall takes away what Pitcrew wrote on the cluster, says so on w, and keeps a remediator that still runs from leading for a minute.
// keepCordons leaves nodes that Pitcrew had cordoned unschedulable. Of the options it uses the namespace, the kubeconfig and the logs.
func Uninstall(ctx context.Context, o Options, keepCordons bool, w io.Writer) error {
	c, record, err := openCluster(o)
	if err != nil {
		return err
	}
	defer record.close()
	ctx, stop := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ignoreEnd(ctx, c.Run(ctx)) })
	group.Go(func() error {
		defer stop()
		synced, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := c.WaitForSync(synced); err != nil {
			return err
		}
		if err := c.Oust(ctx, cluster.LeaderOptions{Identity: "uninstall/" + time.Now().UTC().Format(time.RFC3339Nano)}, leaseKept); err != nil {
			return err
		}
		done, err := c.Undo(ctx, keepCordons)
		fmt.Fprintf(w, "taken away: marks on %d nodes%s, %d reservations; finalizers put back on %d pods%s\nnodes that take pods again: %d%s\n", len(done.Nodes),
			listed(done.Nodes), done.Reservations, len(done.Pods), listed(done.Pods), len(done.Uncordoned), listed(done.Uncordoned))
		return err
	})
	return group.Wait()
}

func listed(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}
