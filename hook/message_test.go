package hook

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
)

// agentKinds are the messages that this side writes.
var agentKinds = []string{"agent-to-rank", "agent-to-launcher"}

func goldenMessages(t testing.TB) (from []string, lines []json.RawMessage) {
	t.Helper()
	f, err := os.Open("testdata/messages.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewScanner(f)
	in.Buffer(nil, MaxAgentLine)
	for in.Scan() {
		var g struct {
			From    string          `json:"from"`
			Message json.RawMessage `json:"message"`
		}
		if err := json.Unmarshal(in.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		from, lines = append(from, g.From), append(lines, g.Message)
	}
	return from, lines
}

func TestEveryGoldenMessageIsKnownAndKeepsItsFields(t *testing.T) {
	from, lines := goldenMessages(t)
	seen := map[string]bool{}
	for i, line := range lines {
		m, err := Decode(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if _, ok := m.(Unknown); ok {
			t.Errorf("unknown: %s", line)
			continue
		}
		seen[m.kind()] = true
		out, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		var want, got map[string]any
		if err := errors.Join(json.Unmarshal(line, &want), json.Unmarshal(out, &got)); err != nil {
			t.Fatal(err)
		}
		mine := false
		for _, k := range agentKinds {
			mine = mine || from[i] == k
		}
		for k, v := range want {
			if k == "files" && !mine {
				continue // ranks leave out their number in their own files
			}
			if g, ok := got[k]; ok && !reflect.DeepEqual(g, v) || !ok && mine {
				t.Errorf("%s: field %s became %v", line, k, g)
			}
		}
		for k := range got {
			if _, ok := want[k]; mine && !ok {
				t.Errorf("%s: field %s is not in the contract", line, k)
			}
		}
	}
	for kind := range decoders {
		if !seen[kind] {
			t.Errorf("no golden message of type %q", kind)
		}
	}
}

func TestMalformedMessagesAreErrors(t *testing.T) {
	for _, line := range []string{"", "{", "[]", `{"t":7}`, `{"t":""}`, `{"req":"x"}`, `{"t":"armed","step":"soon"}`, `{"t":"hello","rank":1e400}`,
		`{"t":"bye"}` + strings.Repeat(" ", MaxAgentLine)} {
		if m, err := Decode([]byte(line)); err == nil {
			t.Errorf("%.40q became %#v", line, m)
		}
	}
	if m, err := Decode([]byte(`{"t":"tomorrow","x":1}`)); err != nil || m != (Unknown{"tomorrow"}) {
		t.Errorf("a type of a newer version: %#v, %v", m, err)
	}
}

func FuzzDecode(f *testing.F) {
	_, lines := goldenMessages(f)
	for _, l := range lines {
		f.Add([]byte(l))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := Decode(line)
		if err != nil {
			return
		}
		if _, ok := m.(Unknown); ok {
			return
		}
		out, err := Encode(m)
		if errors.Is(err, ErrLineTooLong) {
			return // escapes make it longer
		}
		if err != nil {
			t.Fatalf("%#v: %v", m, err)
		}
		again, err := Decode(out)
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%#v became %#v, %v", m, again, err)
		}
	})
}
