// Package incidentcmd is `pitcrew incident`: look at incidents, follow them, answer those that wait for a person.
package incidentcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/remediator/answer"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// Command is `pitcrew incident`.
func Command() *cobra.Command {
	var f connect.Flags
	c := &cobra.Command{Use: "incident", Aliases: []string{"incidents"}, Short: "Look at incidents and answer those that wait"}
	f.Register(c.PersistentFlags())
	c.AddCommand(list(&f), show(&f), watch(&f), export(&f),
		reply(&f, "approve", incident.Approves), reply(&f, "reject", incident.Rejects), reply(&f, "hold", incident.Holding), reply(&f, "release", incident.Releases))
	return c
}

type store = bus.Bucket[incident.Incident]

func open(ctx context.Context, f *connect.Flags, do func(context.Context, store) error) error {
	return f.Open(ctx, func(ctx context.Context, b *bus.Bus) error {
		return do(ctx, bus.NewBucket[incident.Incident](b, bus.IncidentBucket))
	})
}

// childrenOf are the children of a parent, oldest first.
func childrenOf(parent string, all []bus.Change[incident.Incident]) (out []incident.Incident) {
	for _, c := range all {
		if c.Value.Parent == parent {
			out = append(out, c.Value)
		}
	}
	slices.SortFunc(out, func(a, b incident.Incident) int { return a.Opened.Compare(b.Opened) })
	return out
}

// get reads an incident by its id, or by the beginning of its id if only one incident has it.
func get(ctx context.Context, s store, id string) (incident.Incident, uint64, error) {
	i, rev, err := s.Get(ctx, id)
	if !errors.Is(err, bus.ErrNotFound) {
		return i, rev, err
	}
	all, err := s.List(ctx)
	if err != nil {
		return i, 0, err
	}
	var found []bus.Change[incident.Incident]
	for _, x := range all {
		if id != "" && (strings.HasPrefix(x.Value.ID, id) || strings.HasPrefix(x.Value.ID, "inc-"+id)) {
			found = append(found, x)
		}
	}
	switch len(found) {
	case 0:
		return i, 0, exit.With(exit.NotFound, fmt.Errorf("no incident %q; `pitcrew incident list` names them", id))
	case 1:
		return s.Get(ctx, found[0].Value.ID)
	}
	return i, 0, exit.With(exit.NotFound, fmt.Errorf("%d incidents begin with %q, such as %s and %s; give more of the id", len(found), id, found[0].Value.ID, found[1].Value.ID))
}

func show(f *connect.Flags) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "One incident: what was seen, decided, considered, done, and where every second went", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return open(c.Context(), f, func(ctx context.Context, s store) error {
				i, _, err := get(ctx, s, args[0])
				if err != nil {
					return err
				}
				if done, err := f.Encode(c.OutOrStdout(), i); done {
					return err
				}
				i.Write(c.OutOrStdout())
				if i.Group == nil {
					return nil
				}
				all, err := s.List(ctx)
				if err != nil {
					return err
				}
				incident.WriteChildren(c.OutOrStdout(), childrenOf(i.ID, all))
				return nil
			})
		},
	}
}

// shorts say what each answer does.
var shorts = map[string]string{
	"approve": "Answer an incident that waits for a person: approved. Of a parent, for all children that ask now",
	"reject":  "Answer an incident that waits for a person: rejected. Of a parent, for all children that have not acted",
	"hold":    "Hold a parent: none of its children begins to act until it is released, for a day at most",
	"release": "Release a parent that is held",
}

func reply(f *connect.Flags, use, word string) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: use + " ID", Short: shorts[use], Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return open(c.Context(), f, func(ctx context.Context, s store) error {
				i, err := respond(ctx, s, args[0], answer.Answer{Word: word, Reason: reason})
				if err != nil {
					return err
				}
				if done, err := f.Encode(c.OutOrStdout(), map[string]string{"incident": i.ID, "answer": i.Approval}); done {
					return err
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s: %s\n", i.ID, i.Approval)
				return err
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "kept with the answer")
	return c
}

// respond records an operator's answer to an incident.
func respond(ctx context.Context, s store, id string, a answer.Answer) (incident.Incident, error) {
	i, _, err := get(ctx, s, id) // by the beginning of its id, if need be
	if err != nil {
		return i, err
	}
	a.By, a.At = connect.Operator(), time.Now()
	i.Approval, err = answer.Give(ctx, s, i.ID, a)
	var refused answer.Refused
	if errors.As(err, &refused) || errors.Is(err, answer.ErrStale) {
		return i, exit.With(exit.Refused, err)
	}
	return i, err
}
