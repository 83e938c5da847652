package offline

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxRow is the bytes of one row. A quote that nothing closes would be a row as long as the file.
const maxRow = 1 << 20

// rows reads a CSV file row by row, each with its line.
type rows struct {
	csv    *csv.Reader
	read   int64 // bytes that were taken from the source …
	done   int64 // … and that were rows
	header []string
	queue  [][]string // read ahead: the first row
	lines  []int
}

// newRows reads the header and the first row. Before the source is asked for more, idle is called: what was judged is to be seen while
// a pipe is silent.
func newRows(in io.Reader, idle func() error) (*rows, error) {
	r := &rows{}
	b := bufio.NewReaderSize(&metered{in: in, rows: r, idle: idle}, 64<<10)
	if mark, err := b.Peek(3); err == nil && string(mark) == "\ufeff" {
		_, _ = b.Discard(3)
		r.read -= 3
	}
	r.csv = csv.NewReader(b)
	r.csv.FieldsPerRecord = -1
	header, err := r.csv.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("empty file: no header; the first line names the columns, timestamp among them")
	case err != nil:
		return nil, r.wrong(err)
	}
	r.header = slices.Clone(header)
	row, line, err := r.next()
	switch {
	case errors.Is(err, io.EOF):
		return r, nil
	case err != nil:
		return nil, err
	}
	r.queue, r.lines = [][]string{slices.Clone(row)}, []int{line}
	r.csv.ReuseRecord = true
	return r, nil
}

// first is the first row; nil: there is none.
func (r *rows) first() []string {
	if len(r.queue) == 0 {
		return nil
	}
	return r.queue[0]
}

// next gives a row, which is good until the next call, and its line. The error at the end is io.EOF.
func (r *rows) next() ([]string, int, error) {
	if len(r.queue) > 0 {
		row, line := r.queue[0], r.lines[0]
		r.queue, r.lines = r.queue[1:], r.lines[1:]
		return row, line, nil
	}
	row, err := r.csv.Read()
	if err != nil {
		return nil, 0, r.wrong(err)
	}
	line, _ := r.csv.FieldPos(0)
	r.done = r.csv.InputOffset()
	return row, line, nil
}

func (r *rows) wrong(err error) error {
	var p *csv.ParseError
	if errors.As(err, &p) {
		return fmt.Errorf("line %d, column %d: %w: this is no CSV (RFC 4180); a field with a quote in it is quoted and its quotes are doubled", p.Line, p.Column, p.Err)
	}
	return err
}

type metered struct {
	in   io.Reader
	rows *rows
	idle func() error
}

func (m *metered) Read(p []byte) (int, error) {
	if m.rows.csv != nil {
		if m.rows.read-m.rows.done > maxRow {
			return 0, fmt.Errorf("a row of more than %d bytes: is a quote not closed?", maxRow)
		}
		if err := m.idle(); err != nil {
			return 0, err
		}
	}
	n, err := m.in.Read(p)
	m.rows.read += int64(n)
	return n, err
}

// twice names a column that the header has more than once; empty: none.
func twice(header []string) (name string, at, again int) {
	seen := map[string]int{}
	for i, h := range header {
		h = strings.TrimSpace(h)
		if j, ok := seen[h]; ok {
			return h, j + 1, i + 1
		}
		seen[h] = i
	}
	return "", 0, 0
}
