package xidcmd

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"
	"github.com/pitcrew/pitcrew/rules"
)

// maxLine bounds one line of input; the rest of a longer one is skipped.
const maxLine = 64 << 10

func parseCommand(o *options) *cobra.Command {
	var bursts bool
	c := &cobra.Command{
		Use:   "parse [FILE|-]",
		Short: "Find the GPU faults in a kernel log",
		Long: `Find the GPU faults in a kernel log: what dmesg, journalctl -k or syslog print, or
records of /dev/kmsg. Of a .tsv file the first column is read. One event a line
of output, in the order of the input; with --bursts one for each burst of events
of a GPU or switch, under its worst event, or the first cause among equals.`,
		Example: "  dmesg | pitcrew xid parse\n  journalctl -k -b | pitcrew xid parse - -o json\n  pitcrew xid parse /var/log/kern.log --bursts",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := o.tables()
			if err != nil {
				return err
			}
			in, tsv := c.InOrStdin(), false
			if len(args) == 1 && args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in, tsv = f, strings.HasSuffix(args[0], ".tsv")
			}
			p := printer{w: bufio.NewWriter(c.OutOrStdout()), json: o.output == "json"}
			defer p.w.Flush()
			defer func() { p.tellUnread(c.ErrOrStderr()) }()
			if bursts {
				err = parseBursts(t, in, tsv, &p)
			} else {
				err = parseLines(t, in, tsv, &p)
			}
			if err == nil && !p.json && p.tw == nil && p.lost == 0 { // silence would leave open whether anything was read
				fmt.Fprintln(c.ErrOrStderr(), "no GPU fault in this log")
			}
			return errors.Join(err, p.flush())
		},
	}
	c.Flags().BoolVar(&bursts, "bursts", false, "fold events of one GPU or switch into bursts")
	return c
}

// record is an event as `parse -o json` prints it. What a line does not say is null.
type record struct {
	Kind     kernel.Kind    `json:"kind"`
	Code     *int           `json:"code"`
	Name     string         `json:"name"`
	PCI      *string        `json:"pci"`
	MIG      *string        `json:"mig"`
	PID      *int           `json:"pid"`
	Process  *string        `json:"process"`
	Fatal    *bool          `json:"fatal"`
	Severity rules.Severity `json:"severity"`
	Advice   rules.Advice   `json:"advice"`
	Action   *string        `json:"action"`
	CausedBy int            `json:"caused_by,omitempty"`
	UUID     string         `json:"uuid,omitempty"`
	Detail   string         `json:"detail,omitempty"`
	Line     string         `json:"line"`
	*Burst
}

// Burst is what --bursts adds to the event that explains the burst.
type Burst struct {
	Count   int     `json:"count"`
	Seconds float64 `json:"seconds"`
	Echoes  []echo  `json:"echoes"`
	// Others counts events of more kinds than a burst keeps apart.
	Others int `json:"others,omitempty"`
}

type echo struct {
	Kind     kernel.Kind    `json:"kind"`
	Code     *int           `json:"code"`
	Name     string         `json:"name"`
	Severity rules.Severity `json:"severity"`
	Count    int            `json:"count"`
	Echo     bool           `json:"echo"`
}

func newRecord(e *kernel.Event, v verdict.Verdict, line string) record {
	r := record{Kind: e.Kind, Name: v.Name, Severity: v.Severity, Advice: v.Advice, CausedBy: e.CausedBy, Line: line}
	r.Code = code(e)
	if e.PCI.Valid {
		r.PCI = new(e.PCI.String())
	}
	if e.GI >= 0 {
		r.MIG = new(e.MIG())
	}
	if e.PID >= 0 {
		r.PID = new(e.PID)
	}
	if e.Process != nil {
		r.Process = new(string(e.Process))
	}
	if e.Word != kernel.Unsaid {
		r.Fatal = new(e.Word == kernel.Fatal)
	}
	if e.Action != nil {
		r.Action = new(string(e.Action))
	}
	return r
}

func code(e *kernel.Event) *int {
	if e.Kind == kernel.Xid || e.Kind == kernel.SXid {
		return new(e.Code)
	}
	return nil
}

// parseLines prints each event as it is read, so that `dmesg -w` can be piped in.
func parseLines(t *rules.Tables, in io.Reader, tsv bool, p *printer) error {
	var parser kernel.Parser
	return eachLine(in, tsv, func(line []byte) error {
		var e kernel.Event
		for part := range parts(line) {
			switch parser.ParseLogLine(part, &e) {
			case kernel.IsEvent:
			case kernel.Malformed:
				p.unread(part)
				continue
			default:
				continue
			}
			l := lineOf(&e, &parser)
			v := verdict.Judge(t, &l)
			r := newRecord(&e, v, string(line))
			if l.Action != "" { // completed, if it was cut off
				r.Action = &l.Action
			}
			r.UUID = parser.UUID(e.PCI)
			if err := p.print(&r); err != nil {
				return err
			}
		}
		return nil
	})
}

// lineOf is the event as the judge takes it.
func lineOf(e *kernel.Event, parser *kernel.Parser) verdict.Line {
	l := verdict.Line{
		Kind: string(e.Kind), Case: e.Case, Code: e.Code, PCI: e.PCI.String(), MIG: e.MIG(), Action: string(e.Action), CausedBy: e.CausedBy,
		Unit: string(e.Unit), Registers: slices.Clone(e.Reg[:e.Regs]), Driver: kernel.Major(parser.Driver()),
		Word: map[kernel.Word]verdict.Word{kernel.NonFatal: verdict.NonFatal, kernel.Fatal: verdict.Fatal}[e.Word],
	}
	if e.ActionValue >= 0 {
		l.ActionValue = &e.ActionValue
	}
	return l
}

// origin is the event that a burst reports, and what belongs to it.
type origin struct {
	event        kernel.Event
	line, detail string
}

// newOrigin keeps the beginning of what is printed, as the agent does.
func newOrigin(e *kernel.Event) *origin {
	c := e.Clone()
	return &origin{event: c, line: kernel.Clip(e.Text)}
}

func parseBursts(t *rules.Tables, in io.Reader, tsv bool, p *printer) error {
	var parser kernel.Parser
	var failed error
	bursts := verdict.NewBursts(t, func(b *verdict.Burst) {
		lead, worst := leading(b)
		head := b.Reports[lead]
		from := head.Line.Origin.(*origin)
		r := newRecord(&from.event, head.Verdict, from.line)
		r.Severity, r.Advice = worst.Severity, worst.Advice
		r.UUID, r.Detail = parser.UUID(from.event.PCI), from.detail
		if b.Action != "" {
			r.Action = &b.Action
		}
		r.Burst = &Burst{Count: head.Count, Seconds: (b.Last - b.First).Seconds(), Echoes: []echo{}, Others: b.Others}
		for i, other := range b.Reports {
			if i != lead {
				e := &other.Line.Origin.(*origin).event
				r.Echoes = append(r.Echoes, echo{e.Kind, code(e), other.Verdict.Name, other.Verdict.Severity, other.Count, other.Echo})
			}
		}
		failed = errors.Join(failed, p.print(&r))
	})
	var at verdict.Stamp
	var times clock
	err := eachLine(in, tsv, func(line []byte) error {
		var e kernel.Event
		at.Seq++
		if times.read(line) {
			bursts.Flush()
		}
		at.At = times.at
		for part := range parts(line) {
			switch parser.ParseLogLine(part, &e) {
			case kernel.IsEvent:
				l := lineOf(&e, &parser)
				l.Origin = newOrigin(&e)
				bursts.Add(&l, 1, at)
			case kernel.Detail:
				l := lineOf(&e, &parser)
				if r := bursts.Latest(&l, at); r != nil {
					kernel.AppendDetail(&r.Line.Origin.(*origin).detail, e.Text)
				}
			case kernel.Malformed:
				p.unread(part)
			}
		}
		return failed
	})
	bursts.Flush()
	return errors.Join(err, failed)
}

// leading picks the event under which a burst is shown, and the verdict whose severity and advice stand for all of it: the worst. A burst that
// began with a warning may hold a GPU that fell off the bus later. Of equals the cause leads. Xid 154 judges others and never leads them.
func leading(b *verdict.Burst) (lead int, worst verdict.Verdict) {
	lead, worst = b.Cause, b.Reports[b.Cause].Verdict
	for i, r := range b.Reports {
		if r.Verdict.Severity.Worse(worst.Severity) {
			worst = r.Verdict
		}
		if r.Verdict.Role != rules.Verdict && r.Verdict.Severity.Worse(b.Reports[lead].Verdict.Severity) {
			lead = i
		}
	}
	return lead, worst
}

// parts yields the lines of a record: its text may hold escaped newlines.
func parts(line []byte) iter.Seq[[]byte] {
	if r, ok := kernel.ParseRecord(line); ok {
		return kernel.Lines(kernel.Unescape(nil, r.Text))
	}
	return func(yield func([]byte) bool) { yield(line) }
}

// eachLine calls do for each line, or each first column of a .tsv file. What is
// beyond maxLine of a line is skipped.
func eachLine(in io.Reader, tsv bool, do func([]byte) error) error {
	r := bufio.NewReaderSize(in, maxLine)
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			line = bytes.Clone(line) // the next read reuses the buffer
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.ReadSlice('\n')
			}
		}
		line = bytes.TrimRight(line, "\r\n")
		if tsv {
			line, _, _ = bytes.Cut(line, []byte("\t"))
		}
		if len(line) > 0 {
			if err := do(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read kernel log: %w", err)
		}
	}
}

// printer writes records: as JSON one object a line, as text a table's rows.
type printer struct {
	w      *bufio.Writer
	json   bool
	tw     *tabwriter.Writer
	lost   int    // lines that begin like an Xid and cannot be read
	lostAt string // the first of them
}

func (p *printer) unread(line []byte) {
	if p.lost++; p.lost == 1 {
		p.lostAt = strings.ToValidUTF8(string(line[:min(len(line), 200)]), "\uFFFD")
	}
}

func (p *printer) tellUnread(w io.Writer) {
	if p.lost > 0 {
		fmt.Fprintf(w, "pitcrew: lines that begin like an Xid and cannot be read: %d, the first: %s\n", p.lost, p.lostAt)
	}
}

func (p *printer) print(r *record) error {
	if p.json {
		enc := json.NewEncoder(p.w)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(r); err != nil {
			return err
		}
		return p.w.Flush()
	}
	if p.tw == nil {
		p.tw = tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(p.tw, "CODE\tPCI\tMIG\tPID\tPROCESS\tSEVERITY\tADVICE\tWHAT")
	}
	what := r.Name
	if r.Action != nil {
		what += " (driver: " + *r.Action + ")"
	}
	if r.Burst != nil {
		what += r.Burst.words()
	}
	fmt.Fprintf(p.tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", title(r.Kind, r.Code), show(r.PCI), show(r.MIG), show(r.PID), show(r.Process), r.Severity, r.Advice, what)
	return nil
}

func (b *Burst) words() string {
	var s strings.Builder
	if b.Count > 1 {
		fmt.Fprintf(&s, " ×%d", b.Count)
	}
	for i, e := range b.Echoes {
		sep := ", "
		if i == 0 {
			sep = "; with "
		}
		fmt.Fprintf(&s, "%s%s ×%d", sep, title(e.Kind, e.Code), e.Count)
	}
	return s.String()
}

func (p *printer) flush() error {
	if p.tw != nil {
		if err := p.tw.Flush(); err != nil {
			return err
		}
	}
	return p.w.Flush()
}

func title(k kernel.Kind, code *int) string {
	if code == nil {
		return string(k)
	}
	return string(k) + "/" + strconv.Itoa(*code)
}

func show[T any](v *T) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}
