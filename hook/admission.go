package hook

import (
	"bytes"
	"encoding/json"
)

// admission says what happens to a message before it is decoded.
type admission int

const (
	ignored  admission = iota // dropped; nothing this side waits for or keeps
	answer                    // decoded if this side has asked for it and waits
	budgeted                  // decoded within the pod's budget of messages
	always                    // decoded: it comes at most once in a session
)

// admissions are the types that a rank or a launcher may send. All others are ignored, as a type of a newer version is.
var admissions = map[string]admission{
	Hello{}.kind():         always,
	Bye{}.kind():           always,
	Armed{}.kind():         answer,
	Nack{}.kind():          answer,
	Saved{}.kind():         answer,
	Manifested{}.kind():    answer,
	Cancelled{}.kind():     answer,
	Released{}.kind():      answer,
	Pong{}.kind():          answer,
	Held{}.kind():          budgeted,
	Failure{}.kind():       budgeted,
	Collectives{}.kind():   budgeted,
	LauncherState{}.kind(): budgeted,
	WorkerExit{}.kind():    budgeted,
}

// shortLine is how long a message may be whose type has no list and no free text.
const shortLine = 4 << 10

// longest is how long a message of each type may be. A longer one, up to MaxLine, is left out; beyond MaxLine the protocol is broken.
func longest(kind string) int {
	switch kind {
	case Hello{}.kind(), LauncherState{}.kind():
		return 16 << 10
	case Collectives{}.kind(): // 16 groups with a name, a purpose and a list of ranks
		return 32 << 10
	case Failure{}.kind(), Saved{}.kind():
		return MaxLine
	}
	return shortLine
}

// maxKind is how long the name of a message's type may be.
const maxKind = 32

// kindOf reads the type of a message without decoding it. known is false where "t" is not the first field, or not all of it is there
// yet; broken is true if no message of the protocol can begin so.
func kindOf(line []byte) (kind string, known, broken bool) {
	rest := bytes.TrimLeft(line, " \t\r")
	for _, want := range []string{"{", `"t"`, ":", `"`} {
		n := min(len(rest), len(want))
		if string(rest[:n]) != want[:n] {
			return "", false, want == "{" || want == ":"
		}
		if n < len(want) {
			return "", false, false
		}
		rest = rest[n:]
		if want != `"` { // the type itself begins here, and may begin with anything
			rest = bytes.TrimLeft(rest, " \t\r")
		}
	}
	end := bytes.IndexByte(rest, '"')
	if end < 0 || end > maxKind {
		return "", len(rest) > maxKind, false // a type that long is unknown
	}
	return string(rest[:end]), true, false
}

// slowKind is the type of a message whose first field is another.
func slowKind(line []byte) (string, error) {
	var head struct {
		T string `json:"t"`
	}
	err := json.Unmarshal(line, &head)
	return head.T, err
}
