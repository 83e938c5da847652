package event

import (
	"bufio"
	"bytes"
	"io"
)

// ReadLines reads one event a line, and passes over empty lines. A line that is not an event is reported to bad with its number, and
// left out.
func ReadLines(in io.Reader, bad func(line int, err error)) (events []Event, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, MaxBytes)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		e, err := Decode(lines.Bytes())
		if err != nil {
			bad(n, err)
			continue
		}
		events = append(events, e)
	}
	return events, lines.Err()
}
