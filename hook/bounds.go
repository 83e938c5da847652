package hook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Bounds of what is taken from a message of a rank or a launcher.
const (
	maxGroups    = 16
	maxGroupText = 128
	maxRankList  = 512
	// maxFailure bounds an error's text, as long as the ring's.
	maxFailure = 255
	// maxWord bounds a name that a pod chooses, such as a section or a strategy.
	maxWord = 64
	maxPath = 1024
	maxPIDs = 256
	// maxSavedFiles is how many files fit into one Saved: none takes less than 32 bytes of the line.
	maxSavedFiles = MaxLine / 32
)

// Clip is a pod's text as it may be kept and logged: valid, printable, on one line, and of at most n bytes.
func Clip(s string, n int) string {
	s = text([]byte(s[:min(len(s), n)]))
	for len(s) > n { // a character that was cut has become a longer one
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// firstOf decodes at most n elements of a JSON array and returns how many more there are not: more is true if some were left.
func firstOf[T any](array json.RawMessage, n int) (out []T, more bool, err error) {
	if len(array) == 0 || bytes.Equal(array, []byte("null")) {
		return nil, false, nil
	}
	d := json.NewDecoder(bytes.NewReader(array))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, false, fmt.Errorf("want an array, got %.16s", array)
	}
	out = []T{}
	for d.More() {
		if len(out) == n {
			return out, true, nil
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return nil, false, err
		}
		out = append(out, v)
	}
	return out, false, nil
}

// UnmarshalJSON decodes the first 16 groups and no more.
func (c *Collectives) UnmarshalJSON(line []byte) error {
	var raw struct {
		Attempt int             `json:"attempt"`
		Step    int64           `json:"step"`
		Groups  json.RawMessage `json:"groups"`
	}
	err := json.Unmarshal(line, &raw)
	if err != nil {
		return err
	}
	c.Attempt, c.Step = raw.Attempt, raw.Step
	c.Groups, _, err = firstOf[CollectiveGroup](raw.Groups, maxGroups)
	return err
}

// UnmarshalJSON refuses more files than a line of the protocol can name. None is left out: a checkpoint without one of its files
// would be taken for complete.
func (s *Saved) UnmarshalJSON(line []byte) error {
	type plain Saved
	raw := struct {
		*plain
		Files json.RawMessage `json:"files"`
	}{plain: (*plain)(s)}
	if err := json.Unmarshal(line, &raw); err != nil {
		return err
	}
	files, more, err := firstOf[File](raw.Files, maxSavedFiles)
	if more {
		return fmt.Errorf("files: at most %d in a message", maxSavedFiles)
	}
	s.Files = files
	return err
}

// UnmarshalJSON decodes the first 256 process numbers and no more.
func (l *LauncherState) UnmarshalJSON(line []byte) error {
	type plain LauncherState
	raw := struct {
		*plain
		PIDs json.RawMessage `json:"pids"`
	}{plain: (*plain)(l)}
	err := json.Unmarshal(line, &raw)
	if err != nil {
		return err
	}
	l.PIDs, _, err = firstOf[int](raw.PIDs, maxPIDs)
	return err
}

// clipped is a message of a rank or a launcher with its text cut to what may be kept and logged. Names of files are left as they are:
// they are handed on and not kept.
func clipped(m Message) Message {
	switch m := m.(type) {
	case Hello:
		for _, s := range []*string{&m.Role, &m.Section, &m.Strategy, &m.State, &m.JobUID, &m.Torch} {
			*s = Clip(*s, maxWord)
		}
		m.CkptDir = Clip(m.CkptDir, maxPath)
		return m
	case Nack:
		m.Reason = Clip(m.Reason, maxFailure)
		return m
	case Saved:
		m.Error = Clip(m.Error, maxPath)
		return m
	case Manifested:
		m.Error, m.CRC32 = Clip(m.Error, maxPath), Clip(m.CRC32, maxWord)
		return m
	case Failure:
		m.Error = Clip(m.Error, maxFailure)
		return m
	case LauncherState:
		m.State = Clip(m.State, maxWord)
		return m
	case Pong:
		m.Section = Clip(m.Section, maxWord)
		return m
	case Collectives:
		return m.Trimmed()
	}
	return m
}

// keptText is how many bytes of a pod's text a Hello holds.
func (h *Hello) keptText() int {
	return len(h.Role) + len(h.Section) + len(h.Strategy) + len(h.CkptDir) + len(h.State) + len(h.JobUID) + len(h.Torch)
}

// withoutText is a Hello whose text the pod's budget has no room for.
func (h Hello) withoutText() Hello {
	h.Section, h.Strategy, h.CkptDir, h.JobUID, h.Torch = "", "", "", "", ""
	return h
}

// Trimmed is the message with at most 16 groups and short, printable text: it ends up in logs and labels.
func (c Collectives) Trimmed() Collectives {
	c.Groups = append([]CollectiveGroup(nil), c.Groups[:min(len(c.Groups), maxGroups)]...)
	for i := range c.Groups {
		g := &c.Groups[i]
		for _, s := range []*string{&g.Name, &g.Desc, &g.Op} {
			*s = Clip(*s, maxGroupText)
		}
		if len(g.Ranks) > maxRankList || strings.Trim(g.Ranks, "0123456789,-") != "" {
			g.Ranks = ""
		}
	}
	return c
}

// KeptText is how many bytes of a pod's text the message holds.
func (c Collectives) KeptText() (n int) {
	for _, g := range c.Groups {
		n += len(g.Name) + len(g.Desc) + len(g.Op) + len(g.Ranks)
	}
	return n
}
