package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Bounds of a message, its newline included.
const (
	MaxLine      = 64 << 10 // from a rank or a launcher
	MaxAgentLine = 4 << 20  // from an agent: a manifest names the files of every rank
)

// ErrLineTooLong is wrapped by the error of a message beyond its bound.
var ErrLineTooLong = errors.New("message is too long")

// Message is one message of the protocol, in either direction.
type Message interface{ kind() string }

// The roles of a Hello.
const (
	RoleRank     = "rank"
	RoleLauncher = "launcher"
)

// ProtocolVersion is the version a Hello must have.
const ProtocolVersion = 1

// Hello is the first message on every connection. The fields after PID belong to a rank, those after CkptDir to a launcher
// (Attempt to both). All of it is a claim.
type Hello struct {
	V         int     `json:"v"`
	Role      string  `json:"role"`
	Attempt   int     `json:"attempt"`
	PID       int     `json:"pid"`
	Rank      int     `json:"rank"`
	LocalRank int     `json:"local_rank"`
	WorldSize int     `json:"world_size"`
	Step      int64   `json:"step"`
	Section   string  `json:"section"`
	CanSave   bool    `json:"can_save"`
	Strategy  string  `json:"strategy"`
	SaveP99   float64 `json:"save_p99_s"`
	CkptDir   string  `json:"ckpt_dir"`
	State     string  `json:"state"`
	NProc     int     `json:"nproc"`
	NNodes    int     `json:"nnodes"`
	NodeRank  int     `json:"node_rank"`
	JobUID    string  `json:"job_uid"`
	Torch     string  `json:"torch"`
}

// From the agent to a rank.
type (
	// Arm asks a rank to hold at the end of step AtStep.
	Arm struct {
		Req        string `json:"req"`
		Attempt    int    `json:"attempt"`
		AtStep     int64  `json:"at_step"`
		DeadlineMS int64  `json:"deadline_ms"`
		Exclude    []int  `json:"exclude,omitempty"`
	}
	// Go tells a held rank to save.
	Go struct {
		Req     string `json:"req"`
		Attempt int    `json:"attempt"`
	}
	// Manifest asks one rank to write the manifest of a complete checkpoint.
	Manifest struct {
		Req       string `json:"req"`
		Attempt   int    `json:"attempt"`
		Step      int64  `json:"step"`
		Dir       string `json:"dir"`
		Files     []File `json:"files"`
		WorldSize int    `json:"world_size"`
		Writers   []int  `json:"writers"`
	}
	// Cancel disarms.
	Cancel struct {
		Req     string `json:"req"`
		Attempt int    `json:"attempt"`
	}
	// Release lets a rank that has saved go on.
	Release struct {
		Req     string `json:"req"`
		Attempt int    `json:"attempt"`
	}
	// Abort makes a rank leave at once. Nothing answers it; the connection closes.
	Abort struct {
		Attempt int    `json:"attempt"`
		Reason  string `json:"reason"`
	}
	// Ping asks for a Pong.
	Ping struct{}
)

// File is one file of a checkpoint.
type File struct {
	Name  string `json:"name"`
	Rank  int    `json:"rank"`
	Bytes int64  `json:"bytes"`
	CRC32 string `json:"crc32"`
}

// From a rank to the agent.
type (
	// Armed acknowledges an Arm before its step: Step is where the rank is, AtStep where it will hold.
	Armed struct {
		Req     string `json:"req"`
		Attempt int    `json:"attempt"`
		Step    int64  `json:"step"`
		AtStep  int64  `json:"at_step"`
	}
	// Nack refuses a message of a round.
	Nack struct {
		Req     string `json:"req"`
		Attempt int    `json:"attempt"`
		Step    int64  `json:"step"`
		Reason  string `json:"reason"`
	}
	// Held says that a rank has reached its step and holds.
	Held struct {
		Req     string `json:"req"`
		Attempt int    `json:"attempt"`
		Step    int64  `json:"step"`
	}
	// Saved answers Go. Error is empty when the save is complete.
	Saved struct {
		Req     string  `json:"req"`
		Attempt int     `json:"attempt"`
		Step    int64   `json:"step"`
		Dir     string  `json:"dir"`
		Files   []File  `json:"files"`
		Bytes   int64   `json:"bytes"`
		Seconds float64 `json:"seconds"`
		Error   string  `json:"error,omitempty"`
	}
	// Manifested answers Manifest.
	Manifested struct {
		Req     string `json:"req"`
		Attempt int    `json:"attempt"`
		Step    int64  `json:"step"`
		Dir     string `json:"dir"`
		CRC32   string `json:"crc32"`
		Error   string `json:"error,omitempty"`
	}
	// Cancelled answers Cancel.
	Cancelled struct {
		Req     string `json:"req"`
		Attempt int    `json:"attempt"`
	}
	// Released answers Release.
	Released struct {
		Req     string `json:"req"`
		Attempt int    `json:"attempt"`
	}
	// Pong answers Ping. A hook of the version before reports only step and section.
	Pong struct {
		Attempt     int    `json:"attempt"`
		PID         int    `json:"pid"`
		Step        int64  `json:"step"`
		StepMono    uint64 `json:"step_ns"`
		Section     string `json:"section"`
		SectionMono uint64 `json:"section_ns"`
	}
	// Failure is the protocol's "error": an uncaught exception's first line.
	Failure struct {
		Attempt int    `json:"attempt"`
		Step    int64  `json:"step"`
		Error   string `json:"error"`
	}
	// Collectives says which collectives a rank has entered, while a step of it stands still. All of it is the rank's claim.
	Collectives struct {
		Attempt int               `json:"attempt"`
		Step    int64             `json:"step"`
		Groups  []CollectiveGroup `json:"groups"`
	}
	// CollectiveGroup is one process group of a rank, by torch's count of its collectives; -1 is unknown.
	CollectiveGroup struct {
		Name      string `json:"name"`
		Desc      string `json:"desc"`
		Ranks     string `json:"ranks"` // "0-3,8", empty when too many to say
		Size      int    `json:"size"`
		Enqueued  int64  `json:"enqueued"`
		Started   int64  `json:"started"`
		Completed int64  `json:"completed"`
		Op        string `json:"op"` // the newest that was enqueued
	}
	// Bye is the last word of a rank that ends cleanly, and of no other.
	Bye struct {
		Attempt int   `json:"attempt"`
		Step    int64 `json:"step"`
		Code    int   `json:"code"`
	}
)

// Between the agent and a launcher.
type (
	// Alone tells a launcher that nobody manages its job's attempts. HealWait is for how many seconds it stays up for a
	// Stop or Start after a worker has failed; nil leaves it to the launcher.
	Alone struct {
		HealWait *float64 `json:"heal_wait_s,omitempty"`
	}
	// Wait tells a launcher that its pod has no place in the attempt yet.
	Wait struct{}
	// Start tells a launcher its place in an attempt.
	Start struct {
		Attempt    int    `json:"attempt"`
		NodeRank   int    `json:"node_rank"`
		NNodes     int    `json:"nnodes"`
		NProc      int    `json:"nproc"`
		WorldSize  int    `json:"world_size"`
		MasterAddr string `json:"master_addr"`
		MasterPort int    `json:"master_port"`
	}
	// Stop makes a launcher end workers older than Attempt and wait.
	Stop struct {
		Attempt int `json:"attempt"`
	}
	// LauncherState is a launcher's "state", sent at each change.
	LauncherState struct {
		State   string `json:"state"`
		Attempt int    `json:"attempt"`
		PIDs    []int  `json:"pids"`
	}
	// WorkerExit is a launcher's "exit": a worker has ended. Told is true when the launcher killed it, because it was told to
	// stop or start or gave the attempt up; false also from a launcher that does not know the field.
	WorkerExit struct {
		Attempt   int  `json:"attempt"`
		LocalRank int  `json:"local_rank"`
		PID       int  `json:"pid"`
		Code      int  `json:"code"`
		Signal    int  `json:"signal"`
		Told      bool `json:"told"`
	}
)

// Unknown is a message of a type this version does not know; it is ignored.
type Unknown struct{ T string }

func (Hello) kind() string         { return "hello" }
func (Arm) kind() string           { return "arm" }
func (Go) kind() string            { return "go" }
func (Manifest) kind() string      { return "manifest" }
func (Cancel) kind() string        { return "cancel" }
func (Release) kind() string       { return "release" }
func (Abort) kind() string         { return "abort" }
func (Ping) kind() string          { return "ping" }
func (Armed) kind() string         { return "armed" }
func (Nack) kind() string          { return "nack" }
func (Held) kind() string          { return "held" }
func (Saved) kind() string         { return "saved" }
func (Manifested) kind() string    { return "manifested" }
func (Cancelled) kind() string     { return "cancelled" }
func (Released) kind() string      { return "released" }
func (Pong) kind() string          { return "pong" }
func (Failure) kind() string       { return "error" }
func (Collectives) kind() string   { return "collectives" }
func (Bye) kind() string           { return "bye" }
func (Alone) kind() string         { return "alone" }
func (Wait) kind() string          { return "wait" }
func (Start) kind() string         { return "start" }
func (Stop) kind() string          { return "stop" }
func (LauncherState) kind() string { return "state" }
func (WorkerExit) kind() string    { return "exit" }
func (u Unknown) kind() string     { return u.T }

// decoders is every message of the protocol by its type.
var decoders = table(
	as[Hello](), as[Arm](), as[Go](), as[Manifest](), as[Cancel](), as[Release](), as[Abort](), as[Ping](),
	as[Armed](), as[Nack](), as[Held](), as[Saved](), as[Manifested](), as[Cancelled](), as[Released](), as[Pong](),
	as[Failure](), as[Bye](), as[Collectives](),
	as[Alone](), as[Wait](), as[Start](), as[Stop](), as[LauncherState](), as[WorkerExit](),
)

type decoder struct {
	kind   string
	decode func([]byte) (Message, error)
}

func as[M Message]() decoder {
	var zero M
	return decoder{zero.kind(), func(line []byte) (Message, error) {
		var m M
		err := json.Unmarshal(line, &m)
		return m, err
	}}
}

func table(ds ...decoder) map[string]func([]byte) (Message, error) {
	t := make(map[string]func([]byte) (Message, error), len(ds))
	for _, d := range ds {
		t[d.kind] = d.decode
	}
	return t
}

// Encode is a message as one line, newline included.
func Encode(m Message) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("message %s: %w", m.kind(), err)
	}
	line := append([]byte(`{"t":"`+m.kind()+`"`), ',')
	if len(body) == 2 { // {}
		line = line[:len(line)-1]
	}
	line = append(append(line, body[1:]...), '\n')
	if len(line) > MaxAgentLine {
		return nil, fmt.Errorf("message %s of %d bytes, at most %d: %w", m.kind(), len(line), MaxAgentLine, ErrLineTooLong)
	}
	return line, nil
}

// Decode reads one line, with or without its newline. Unknown fields are ignored; an unknown type is an Unknown.
func Decode(line []byte) (Message, error) {
	if len(line) > MaxAgentLine {
		return nil, fmt.Errorf("message of %d bytes, at most %d: %w", len(line), MaxAgentLine, ErrLineTooLong)
	}
	line = bytes.TrimSpace(line)
	var head struct {
		T string `json:"t"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	if head.T == "" {
		return nil, errors.New(`message: no type "t"`)
	}
	return decodeAs(head.T, line)
}

// decodeAs reads one line whose type is known.
func decodeAs(kind string, line []byte) (Message, error) {
	decode, ok := decoders[kind]
	if !ok {
		return Unknown{kind}, nil
	}
	m, err := decode(line)
	if err != nil {
		return nil, fmt.Errorf("message %s: %w", kind, err)
	}
	return m, nil
}
