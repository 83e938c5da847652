package incidentcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/remediator/answer"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

func watch(f *connect.Flags) *cobra.Command {
	var plain bool
	c := &cobra.Command{
		Use: "watch", Short: "Follow incidents as they happen; on a terminal, with list, timeline, evidence and answers", Args: cobra.NoArgs,
		Long: `Follow incidents as they happen.

On a terminal it shows the list of incidents and the selected one in full, and takes answers to those that wait. In a
pipe, with --plain or with -o json it prints each step as one line, from now on.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.Open(c.Context(), func(ctx context.Context, b *bus.Bus) error {
				s := bus.NewBucket[incident.Incident](b, bus.IncidentBucket)
				if plain || f.Structured() || !interactive() {
					return follow(ctx, c, f, s)
				}
				return onScreen(ctx, b, s)
			})
		},
	}
	c.Flags().BoolVar(&plain, "plain", false, "print lines, also on a terminal")
	return c
}

func interactive() bool {
	return term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("TERM") != "dumb"
}

// follow prints each step from now on.
func follow(ctx context.Context, c *cobra.Command, f *connect.Flags, s store) error {
	shown, past := map[string]int{}, true
	return s.Watch(ctx, func() { past = false }, func(x bus.Change[incident.Incident]) {
		i := x.Value
		if f.Structured() && !past {
			_ = json.NewEncoder(c.OutOrStdout()).Encode(i)
		}
		for _, n := range i.Notes[min(shown[i.ID], len(i.Notes)):] {
			if !past && !f.Structured() {
				out := c.OutOrStdout()
				fmt.Fprintln(out, incident.FoldLine(i.ID+" "+i.Line(n), incident.Columns(out), len(i.ID)+1))
			}
		}
		shown[i.ID] = len(i.Notes)
	})
}

// onScreen runs the terminal view until the user leaves it.
func onScreen(ctx context.Context, b *bus.Bus, s store) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	model := newScreen(func(id, word, question string) (string, error) {
		within, done := context.WithTimeout(ctx, 5*time.Second)
		defer done()
		i, err := respond(within, s, id, answer.Answer{Word: word, Check: answer.Still(question)})
		return i.Approval, err
	}, time.Now)
	program := tea.NewProgram(model, tea.WithContext(ctx))
	watched := make(chan error, 1)
	go func() {
		err := s.Watch(ctx, func() { program.Send(current{}) }, func(x bus.Change[incident.Incident]) { program.Send(x.Value) })
		if ctx.Err() == nil {
			program.Send(failed{err})
		}
		watched <- err
	}()
	paused := make(chan error, 1)
	go func() { paused <- b.WatchKillSwitch(ctx, nil, func(k bus.KillSwitch) { program.Send(k) }) }()
	_, err := program.Run()
	stopped := ctx.Err() != nil
	cancel()
	<-watched
	<-paused
	if errors.Is(err, tea.ErrInterrupted) || stopped {
		return nil
	}
	return errors.Join(err, model.failed)
}
