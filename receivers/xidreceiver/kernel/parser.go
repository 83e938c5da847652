package kernel

import "bytes"

// Parser reads lines and keeps what spans them: the address named two lines
// before "fallen off the bus", GPU UUIDs by address, the driver's version.
type Parser struct {
	lost    Address // from "The NVIDIA GPU <address>"
	lostAge int     // lines since
	uuid    map[Address]string
	driver  string
}

// The form of "fallen off the bus" that spans lines is one printk; other lines
// come between its parts only where a daemon split it.
const lostWithin = 8

// maxUUIDs bounds what a log full of invented addresses can make us remember.
const maxUUIDs = 1024

// Driver returns the driver's version if the log reported it, else "".
func (p *Parser) Driver() string { return p.driver }

// Major returns the major number of a driver's version, 0 for none.
func Major(version string) int {
	n, _, _ := number([]byte(version), '.')
	return int(n)
}

// UUID returns the GPU's UUID where the log told it, else "".
func (p *Parser) UUID(a Address) string { return p.uuid[a] }

// Learn records which GPU sits at an address.
func (p *Parser) Learn(a Address, uuid string) {
	if p.uuid == nil {
		p.uuid = make(map[Address]string)
	}
	if _, known := p.uuid[a]; known || len(p.uuid) < maxUUIDs {
		p.uuid[a] = uuid
	}
}

// UUIDs returns all that is known, by address.
func (p *Parser) UUIDs() map[Address]string { return p.uuid }

// Parse reads the text of a kernel record, which begins with the driver's tag.
// A record of several lines is given line by line, as Lines yields them.
func (p *Parser) Parse(text []byte, e *Event) Result {
	return p.parse(skipPrinted(text), e)
}

// ParseLogLine reads a line of a log file: what dmesg, a journal or syslog make
// of a record, with any prefix, or a record in /dev/kmsg's own format.
func (p *Parser) ParseLogLine(line []byte, e *Event) Result {
	if r, ok := ParseRecord(line); ok {
		return p.Parse(r.Text, e)
	}
	return p.parse(tagged(line), e)
}

// skipPrinted drops what tools that write into /dev/kmsg put before a line:
// "kernel: " and bracketed times or thread ids.
func skipPrinted(b []byte) []byte {
	for range 4 {
		switch {
		case bytes.HasPrefix(b, []byte("kernel: ")):
			b = b[len("kernel: "):]
		case len(b) > 0 && b[0] == '[':
			end := bytes.IndexByte(b, ']')
			if end < 0 || end > 40 || end+1 >= len(b) || b[end+1] != ' ' {
				return b
			}
			b = bytes.TrimLeft(b[end+1:], " ")
		default:
			return b
		}
	}
	return b
}

// Tags by which a line of a log file is recognised behind its prefix.
var tags = [][]byte{[]byte("NVRM: "), []byte("nvidia-nvswitch"), []byte("mlx5_"), []byte("AER: "), []byte("PCIe Bus Error: ")}

// tagged returns the line from the driver's tag on, or nil.
func tagged(line []byte) []byte {
	for n, tag := range tags {
		i := bytes.Index(line, tag)
		if i < 0 {
			continue
		}
		if n >= 3 { // the device stands before: "pcieport 0000:00:02.0: AER: …"
			if i = deviceBefore(line, i); i < 0 {
				return nil
			}
		}
		if !endsPrefix(line[:i]) {
			return nil
		}
		return line[i:]
	}
	return nil
}

// deviceBefore finds the start of "driver address: " that ends at i.
func deviceBefore(line []byte, i int) int {
	if i < 2 {
		return -1
	}
	at := bytes.LastIndexByte(line[:i-1], ' ') // before the address
	if at < 1 {
		return -1
	}
	return bytes.LastIndexByte(line[:at], ' ') + 1 // before the driver's name
}

// endsPrefix reports whether a log's prefix can end so: with a colon, a bracket,
// a time, a level ("<3>"), RFC 5424's "-" or the journal's "MESSAGE=". A word
// there means that somebody talks about such a line.
func endsPrefix(prefix []byte) bool {
	prefix = bytes.TrimRight(prefix, " \t")
	if len(prefix) == 0 {
		return true
	}
	word := prefix[bytes.LastIndexByte(prefix, ' ')+1:]
	switch c := word[len(word)-1]; {
	case c == ':' || c == ']':
		return true
	case c >= '0' && c <= '9' || c == 'Z':
		return bytes.IndexByte(word, ':') > 0
	case c == '>':
		_, rest, ok := number(word[1:], '>')
		return word[0] == '<' && ok && len(rest) == 0
	case c == '-':
		return len(word) == 1
	}
	return string(word) == "MESSAGE="
}

func (p *Parser) parse(b []byte, e *Event) Result {
	if p.lost.Valid {
		if p.lostAge++; p.lostAge > lostWithin {
			p.lost = Address{}
		}
	}
	if len(b) < 8 {
		return Nothing
	}
	switch {
	case (b[0] == 'N' || b[0] == 'm') && ofProcess(b):
		return Nothing
	case b[0] == 'N' && bytes.HasPrefix(b, []byte("NVRM: ")):
		return p.nvrm(b, e)
	case b[0] == 'n' && bytes.HasPrefix(b, []byte("nvidia-nvswitch")):
		return sxid(b, e)
	case b[0] == 'm' && bytes.HasPrefix(b, []byte("mlx5_")):
		return mlx5(b, e)
	}
	return aer(b, e)
}

// reset makes e an empty event.
func (e *Event) reset(kind Kind, text []byte) {
	*e = Event{Kind: kind, Text: text, GI: -1, CI: -1, PID: -1, Link: -1, ActionValue: -1}
}

func (p *Parser) nvrm(b []byte, e *Event) Result {
	rest := b[len("NVRM: "):]
	if len(rest) == 0 {
		return Nothing
	}
	switch rest[0] {
	case 'X':
		if bytes.HasPrefix(rest, []byte("Xid (")) {
			return xid(b, rest[len("Xid ("):], e)
		}
		if bytes.HasPrefix(rest, []byte("Xid")) {
			return Malformed
		}
	case 'T':
		if r, ok := bytes.CutPrefix(rest, []byte("The NVIDIA GPU ")); ok {
			if a, after, ok := address(r); ok {
				p.lost, p.lostAge = a, 0
				if bytes.Contains(after, []byte("fallen off the bus")) {
					return p.fallen(b, e)
				}
			}
			return Learnt
		}
	case 'f':
		if bytes.HasPrefix(rest, []byte("fallen off the bus")) {
			return p.fallen(b, e)
		}
	case 'l':
		if bytes.HasPrefix(rest, []byte("loading NVIDIA UNIX")) {
			return p.learnDriver(rest)
		}
	case 'G':
		if r, ok := bytes.CutPrefix(rest, []byte("GPU at PCI:")); ok {
			return p.learnUUID(r)
		}
		if r, ok := bytes.CutPrefix(rest, []byte("GPU ")); ok {
			a, after, ok := address(r)
			if !ok {
				a, after, ok = busAddress(r)
			}
			if ok && bytes.Contains(after, []byte("fallen off the bus")) {
				p.lost = a
				return p.fallen(b, e)
			}
		}
	}
	return nvrmSignal(b, rest, e)
}

// fallen is the last line of a lost GPU that came without an Xid.
func (p *Parser) fallen(b []byte, e *Event) Result {
	e.reset(GPULost, b)
	e.Case = "fallen off the bus"
	e.PCI, p.lost = p.lost, Address{}
	return IsEvent
}

// learnUUID reads "0000:01:00: GPU-aeab3757-…".
func (p *Parser) learnUUID(b []byte) Result {
	a, rest, ok := address(b)
	if !ok {
		return Nothing
	}
	rest, ok = bytes.CutPrefix(rest, []byte(": "))
	if !ok || !bytes.HasPrefix(rest, []byte("GPU-")) || len(rest) < 40 {
		return Nothing
	}
	for i, c := range rest[4:40] {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (c == '-') || !dash && unhex(c) < 0 {
			return Nothing
		}
	}
	if uuid := rest[:40]; p.uuid[a] != string(uuid) {
		p.Learn(a, string(uuid))
	}
	return Learnt
}

const maxVersion = 32

// learnDriver reads "loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  …".
func (p *Parser) learnDriver(b []byte) Result {
	for word := range bytes.FieldsSeq(b) {
		if n, rest, ok := number(word, '.'); ok && n >= 100 && n < 10000 && len(rest) > 0 {
			p.driver = clip(word, maxVersion)
			return Learnt
		}
	}
	return Nothing
}
