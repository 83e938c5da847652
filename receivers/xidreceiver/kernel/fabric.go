package kernel

import (
	"bytes"
	"time"
)

// FabricTime is how the fabric manager writes the time: the node's local time, to the second.
const FabricTime = "Jan 02 2006 15:04:05"

var fabricWords = []struct {
	text []byte
	word Word
}{
	{[]byte("fatal error "), Fatal},
	{[]byte("non-fatal error "), NonFatal},
}

// ParseFabric reads a line of the fabric manager's log:
//
//	[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33
//
// It returns the time as written, without a zone. Releases name the node "fid" or "NodeId". Only a line that begins this way is an event: text
// that quotes such a line is not.
func ParseFabric(line []byte, e *Event) (time.Time, Result) {
	written, rest, ok := bracketed(line)
	if !ok {
		return time.Time{}, Nothing
	}
	_, rest, ok = bracketed(rest) // the level
	if !ok {
		return time.Time{}, Nothing
	}
	if thread, after, ok := bracketed(rest); ok && bytes.HasPrefix(thread, []byte("tid ")) {
		rest = after
	}
	rest, ok = bytes.CutPrefix(rest, []byte("detected NVSwitch "))
	if !ok {
		return time.Time{}, Nothing
	}
	for _, w := range fabricWords {
		b, is := bytes.CutPrefix(rest, w.text)
		if !is {
			continue
		}
		at, err := time.ParseInLocation(FabricTime, string(written), time.UTC)
		e.reset(SXid, line)
		e.Word = w.word
		if err != nil || !e.fabricError(b) {
			return time.Time{}, Malformed
		}
		return at, IsEvent
	}
	return time.Time{}, Nothing
}

// fabricError reads "20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33".
func (e *Event) fabricError(b []byte) bool {
	var ok bool
	if e.Code, b, ok = integer(b); !ok || e.Code == 0 || !bytes.HasPrefix(b, []byte(" on ")) {
		return false
	}
	_, after, ok := bytes.Cut(b[:min(len(b), 96)], []byte(" on NVSwitch pci bus id "))
	if !ok {
		return false
	}
	if e.PCI, b, ok = address(after); !ok || len(b) > 0 && b[0] != ' ' {
		return false
	}
	if _, port, is := bytes.Cut(b, []byte(" port ")); is {
		if n, _, ok := integer(port); ok {
			e.Link = n
		}
	}
	return true
}

// bracketed reads "[word] " at the start of b.
func bracketed(b []byte) (word, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '[' {
		return nil, nil, false
	}
	end := bytes.Index(b[:min(len(b), 48)], []byte("] "))
	if end < 0 {
		return nil, nil, false
	}
	return b[1:end], b[end+2:], true
}
