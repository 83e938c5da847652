package bus

import (
	"fmt"
	"strings"
)

// Streams and buckets. Their names are part of the contract with operators' own tools.
const (
	EventStream     = "PITCREW_EVENTS"
	ConditionStream = "PITCREW_CONDITIONS"
	IncidentBucket  = "PITCREW_INCIDENTS"
	SeenBucket      = "PITCREW_SEEN"
	AttemptBucket   = "PITCREW_ATTEMPTS"
	ControlBucket   = "PITCREW_CONTROL"
	StatementBucket = "PITCREW_STATEMENTS"
	FindingBucket   = "PITCREW_FINDINGS"
	ClassBucket     = "PITCREW_CLASSES"
	LedgerBucket    = "PITCREW_LEDGER"
	AsideBucket     = "PITCREW_ASIDE"
	NoticeBucket    = "PITCREW_NOTICES"
)

const (
	eventPrefix     = "pitcrew.v1.event"
	conditionPrefix = "pitcrew.v1.condition"
	beatPrefix      = "pitcrew.v1.beat"
	commandPrefix   = "pitcrew.v1.cmd"
)

// Token escapes a name into one subject token: letters, digits, '-' and '_' stay, every other byte becomes "=XX". The empty
// name becomes "=". Distinct names give distinct tokens.
func Token(name string) string {
	if name == "" {
		return "="
	}
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}

// Untoken is the inverse of Token.
func Untoken(token string) (string, error) {
	if token == "=" {
		return "", nil
	}
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		if token[i] != '=' {
			b.WriteByte(token[i])
			continue
		}
		var c byte
		if i+3 > len(token) {
			return "", fmt.Errorf("subject token %q: cut escape", token)
		}
		if _, err := fmt.Sscanf(token[i+1:i+3], "%02X", &c); err != nil {
			return "", fmt.Errorf("subject token %q: %w", token, err)
		}
		b.WriteByte(c)
		i += 2
	}
	return b.String(), nil
}

// path is where a bucket keeps the value of a key: a token for each of its lines.
func path(key string) string {
	lines := strings.Split(key, "\n")
	for i, l := range lines {
		lines[i] = Token(l)
	}
	return strings.Join(lines, ".")
}

// unpath is the inverse of path, and refuses what path does not give.
func unpath(at string) (string, error) {
	tokens := strings.Split(at, ".")
	for i, t := range tokens {
		var err error
		if tokens[i], err = Untoken(t); err != nil {
			return "", err
		}
	}
	key := strings.Join(tokens, "\n")
	if path(key) != at {
		return "", fmt.Errorf("key %q is not spelt as keys are", at)
	}
	return key, nil
}

func subject(prefix string, names ...string) string {
	parts := make([]string, 0, len(names)+1)
	parts = append(parts, prefix)
	for _, n := range names {
		parts = append(parts, Token(n))
	}
	return strings.Join(parts, ".")
}

// nodeOf is the node token of a subject below prefix.
func nodeOf(subject, prefix string) (string, error) {
	parts := strings.Split(strings.TrimPrefix(subject, prefix+"."), ".")
	if len(parts) < 2 {
		return "", fmt.Errorf("subject %q names no node", subject)
	}
	return Untoken(parts[1])
}
