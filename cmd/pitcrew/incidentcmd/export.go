package incidentcmd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/terminal"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/ledger"
)

// around is how long before and after an incident the events of its nodes and its job are exported.
const around = 30 * time.Minute

// about is the archive's own description.
const about = `Pitcrew exported incident %s of cluster %q at %s.

incident.txt       the incident as "pitcrew incident show" prints it
incident.json      the same as JSON: the record that the remediator keeps
children.json      the incidents of the same cause, if it is a parent
events.jsonl       CloudEvents of its nodes and its job, from %s before it to %s after it; one per line, oldest first
events/            the events of the incident itself, one per file: for "pitcrew policy explain --event FILE --policies ..."
conditions.json    the conditions of its nodes at the time of the export
grants.json        what the admission ledger granted to it
SHA256SUMS         checksums of these files

Times are UTC. The archive holds names of nodes, pods, jobs and people, and lines of the kernel log. It holds no
credentials, no environment variables and no training data.
`

func export(f *connect.Flags) *cobra.Command {
	var file string
	var force bool
	c := &cobra.Command{
		Use: "export ID", Args: cobra.ExactArgs(1),
		Short: "Everything about one incident as one archive, for a postmortem or a vendor's RMA",
		Long: `Everything about one incident as one .tar.gz archive: the record, the events of its nodes and its job, conditions,
grants and checksums. It is for a postmortem or a vendor's RMA.`,
		RunE: func(c *cobra.Command, args []string) error {
			return f.Open(c.Context(), func(ctx context.Context, b *bus.Bus) error {
				i, _, err := get(ctx, bus.NewBucket[incident.Incident](b, bus.IncidentBucket), args[0])
				if err != nil {
					return err
				}
				if file == "" {
					file = i.ID + ".tar.gz"
				}
				var files []archived
				if files, err = collect(ctx, b, &i, time.Now().UTC(), c.ErrOrStderr()); err != nil {
					return err
				}
				size, err := save(file, force, c.OutOrStdout(), i.ID, files)
				if err != nil || file == "-" {
					return err
				}
				names := []string{}
				for _, a := range files {
					names = append(names, a.name)
				}
				if done, err := f.Encode(c.OutOrStdout(), map[string]any{"incident": i.ID, "file": file, "bytes": size, "contents": names}); done {
					return err
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s: %d files, %d KiB\n", file, len(files), (size+1023)/1024)
				return err
			})
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "archive to write (default ID.tar.gz); - is standard output")
	c.Flags().BoolVar(&force, "force", false, "overwrite an existing file")
	return c
}

type archived struct {
	name string
	data []byte
}

// collect reads everything about an incident. A part that cannot be read becomes a file that says why, so that an export never fails for
// one of them.
func collect(ctx context.Context, b *bus.Bus, i *incident.Incident, now time.Time, progress io.Writer) ([]archived, error) {
	var text bytes.Buffer
	i.Write(&text)
	files := []archived{{"incident.txt", text.Bytes()}}
	put := func(name string, v any, err error) {
		var data bytes.Buffer
		if err == nil {
			err = connect.WriteJSON(&data, v)
		}
		if err != nil {
			fmt.Fprintf(progress, "%s: %v\n", name, err)
			name, data = name+".error.txt", *bytes.NewBufferString(err.Error() + "\n")
		}
		files = append(files, archived{name, data.Bytes()})
	}
	put("incident.json", i, nil)
	if i.Group != nil {
		all, err := bus.NewBucket[incident.Incident](b, bus.IncidentBucket).List(ctx)
		put("children.json", childrenOf(i.ID, all), err)
	}
	for _, f := range i.Faults {
		if raw, err := event.Encode(f.Event); err == nil && f.Event.ID != "" {
			files = append(files, archived{"events/" + safe(f.Event.ID) + ".json", raw})
		}
	}
	fmt.Fprintln(progress, "reading the events of its nodes and its job…")
	lines, err := eventsOf(ctx, b, i)
	if err != nil {
		put("events.jsonl", nil, err)
	} else {
		files = append(files, archived{"events.jsonl", lines})
	}
	conditions, err := conditionsOf(ctx, b, i)
	put("conditions.json", conditions, err)
	grants, err := grantsOf(ctx, b, i)
	put("grants.json", grants, err)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	readme := fmt.Sprintf(about, i.ID, i.Cluster, now.Format(time.RFC3339), around, around)
	return append([]archived{{"README.txt", []byte(readme)}}, files...), nil
}

// safe makes a file name of an id.
func safe(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, id)
}

// concerns reports whether an event is about one of the incident's nodes or its job.
func concerns(i *incident.Incident, e *event.Event) bool {
	t := e.Data.Target
	if i.Job != nil && t.Job != nil && t.Job.UID == i.Job.UID || i.Knows(e.ID) {
		return true
	}
	return t.Node != "" && slices.ContainsFunc(i.Faults, func(f incident.Fault) bool { return f.Node == t.Node })
}

func eventsOf(ctx context.Context, b *bus.Bus, i *incident.Incident) ([]byte, error) {
	var out bytes.Buffer
	var failed error
	end := i.ClosedAt
	if end.IsZero() {
		end = time.Now()
	}
	err := b.Replay(ctx, i.Began().Add(-around), func(d bus.Delivery) {
		if d.Event.Time.After(end.Add(around)) || !concerns(i, &d.Event) {
			return
		}
		raw, err := event.Encode(d.Event)
		if err != nil {
			failed = errors.Join(failed, err)
			return
		}
		out.Write(raw)
		out.WriteByte('\n')
	}, func(string, error) {})
	return out.Bytes(), errors.Join(err, failed)
}

func conditionsOf(ctx context.Context, b *bus.Bus, i *incident.Incident) ([]bus.Condition, error) {
	all, err := b.ConditionsNow(ctx)
	return slices.DeleteFunc(all, func(c bus.Condition) bool {
		return !slices.ContainsFunc(i.Faults, func(f incident.Fault) bool { return f.Node == c.Node })
	}), err
}

func grantsOf(ctx context.Context, b *bus.Bus, i *incident.Incident) ([]guard.Grant, error) {
	book, _, err := bus.NewBucket[ledger.Book](b, bus.LedgerBucket).Get(ctx, ledger.Key)
	if errors.Is(err, bus.ErrNotFound) {
		return []guard.Grant{}, nil
	}
	return append([]guard.Grant{}, slices.DeleteFunc(book.Grants, func(g guard.Grant) bool { return g.Incident != i.ID })...), err
}

// save writes the archive. A file appears only complete: it is written beside its place and moved there.
func save(file string, force bool, out io.Writer, folder string, files []archived) (size int, err error) {
	var raw bytes.Buffer
	if err := pack(&raw, folder, files); err != nil {
		return 0, err
	}
	if file == "-" {
		_, err := terminal.Raw(out).Write(raw.Bytes())
		return raw.Len(), err
	}
	if _, err := os.Stat(file); err == nil && !force {
		return 0, exit.With(exit.Refused, fmt.Errorf("%s exists; choose another name by --file, or overwrite it by --force", file))
	}
	if err := os.WriteFile(file+".part", raw.Bytes(), 0o600); err != nil {
		return 0, errors.Join(err, os.RemoveAll(file+".part"))
	}
	return raw.Len(), os.Rename(file+".part", file)
}

func pack(w io.Writer, folder string, files []archived) error {
	var sums bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(f.data), f.name)
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, f := range append(slices.Clone(files), archived{"SHA256SUMS", sums.Bytes()}) {
		if err := t.WriteHeader(&tar.Header{Name: path.Join(folder, f.name), Mode: 0o644, Size: int64(len(f.data)), Format: tar.FormatPAX}); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}
