package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Verbs of commands to a node's agent.
const (
	VerbStatus   = "status"
	VerbArm      = "arm"
	VerbGo       = "go"
	VerbManifest = "manifest"
	VerbCancel   = "cancel"
	VerbRelease  = "release"
	VerbAbort    = "abort"
)

// Command asks a node's agent to do something with ranks on its node. It is idempotent by Req and fenced by Attempt.
type Command struct {
	Req        string   `json:"req,omitempty"`
	Attempt    int      `json:"attempt"`
	PodUIDs    []string `json:"pod_uids,omitempty"` // status: empty means every pod on the node
	AtStep     int64    `json:"at_step,omitempty"`  // arm
	DeadlineMS int64    `json:"deadline_ms,omitempty"`
	Exclude    []int    `json:"exclude,omitempty"` // arm: ranks that must not be the writer
	Manifest   *Save    `json:"manifest,omitempty"`
	Writer     int      `json:"writer,omitempty"` // manifest: rank that writes it
	Reason     string   `json:"reason,omitempty"` // abort
}

// Reply is the agent's answer.
type Reply struct {
	Node  string      `json:"node"`
	Error string      `json:"error,omitempty"`
	Pods  []PodStatus `json:"pods,omitempty"`  // status
	Ranks []RankReply `json:"ranks,omitempty"` // arm, go, manifest, cancel, release, abort
}

// PodStatus is what the agent knows of one training pod on its node.
type PodStatus struct {
	PodUID   string          `json:"pod_uid"`
	GPUs     []string        `json:"gpus,omitempty"` // UUIDs, from the kubelet's pod-resources API
	Launcher *LauncherStatus `json:"launcher,omitempty"`
	Ranks    []RankStatus    `json:"ranks,omitempty"`
}

// LauncherFailed is the state of a launcher of which a worker has ended by itself. It waits for the next attempt.
const LauncherFailed = "failed"

// LauncherStatus is the state of pitcrew_torch.run in a pod.
type LauncherStatus struct {
	State   string `json:"state"` // waiting|running|stopped|done|failed
	Attempt int    `json:"attempt"`
	NProc   int    `json:"nproc"`
	Pids    []int  `json:"pids,omitempty"`
	JobUID  string `json:"job_uid,omitempty"` // the pod's claim
}

// RankStatus is one rank as its ring and its socket show it.
type RankStatus struct {
	Rank          int           `json:"rank"`
	LocalRank     int           `json:"local_rank"`
	WorldSize     int           `json:"world_size"`
	Attempt       int           `json:"attempt"`
	Pid           int           `json:"pid"`
	Step          int64         `json:"step"`
	StepAgeS      float64       `json:"step_age_s"`
	HeartbeatAgeS float64       `json:"heartbeat_age_s"`
	Section       string        `json:"section"`
	SectionAgeS   float64       `json:"section_age_s"`
	MedianStepS   float64       `json:"median_step_s"` // of the ring's records; 0: none yet
	P99StepS      float64       `json:"p99_step_s"`
	SaveS         float64       `json:"save_s"` // longest save seen
	CkptStep      int64         `json:"ckpt_step"`
	Claim         *ClaimReading `json:"claim,omitempty"`        // nil: it reads none
	ResumedStep   *int64        `json:"resumed_step,omitempty"` // nil: has not resumed yet
	Connected     bool          `json:"connected"`              // the socket answers
	ProcState     string        `json:"proc_state,omitempty"`   // of /proc/<pid>/stat, where it can be seen
	Exit          string        `json:"exit"`                   // running|clean|exception
	CanSave       bool          `json:"can_save"`
	Strategy      string        `json:"strategy,omitempty"`
	Error         string        `json:"error,omitempty"`
}

// ClaimReading is what a rank read of rank 0's heartbeat beside the checkpoints.
type ClaimReading struct {
	Epoch   int64   `json:"epoch"`
	Attempt int     `json:"attempt"`
	Step    int64   `json:"step"`
	Count   int64   `json:"count"`
	AgeS    float64 `json:"age_s"` // since its look at the storage began
}

// RankReply is one rank's answer to a step of the checkpoint protocol.
type RankReply struct {
	PodUID string `json:"pod_uid"`
	Rank   int    `json:"rank"`
	T      string `json:"t"` // armed|nack|held|saved|manifested|cancelled|released|aborted|gone|timeout
	Step   int64  `json:"step,omitempty"`
	AtStep int64  `json:"at_step,omitempty"` // armed: where it will hold
	Reason string `json:"reason,omitempty"`
	Save   *Save  `json:"save,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Save is what ranks wrote for one checkpoint.
type Save struct {
	Req       string     `json:"req,omitempty"` // the round that wrote it
	Step      int64      `json:"step"`
	Dir       string     `json:"dir"`
	Files     []SaveFile `json:"files"`
	Bytes     int64      `json:"bytes"`
	Seconds   float64    `json:"seconds"`
	WorldSize int        `json:"world_size,omitempty"`
	CRC32     string     `json:"crc32,omitempty"` // of the manifest, when written
}

// SaveFile is one file of a checkpoint.
type SaveFile struct {
	Name  string `json:"name"`
	Rank  int    `json:"rank"`
	Bytes int64  `json:"bytes"`
	CRC32 string `json:"crc32"` // IEEE, 8 hex digits
}

// ErrNoAgent is wrapped by Request when nobody answers for the node.
var ErrNoAgent = errors.New("no agent answers")

// Request sends a command to the agent of node and waits for its reply until ctx ends.
func (b *Bus) Request(ctx context.Context, node, verb string, c Command) (Reply, error) {
	var r Reply
	raw, err := json.Marshal(c)
	if err != nil {
		return r, err
	}
	m, err := b.nc.RequestWithContext(ctx, subject(commandPrefix, b.cluster, node, verb), raw)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return r, fmt.Errorf("%s on node %s: %w", verb, node, ErrNoAgent)
	case err != nil:
		return r, fmt.Errorf("%s on node %s: %w", verb, node, err)
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return r, fmt.Errorf("%s on node %s: answer: %w", verb, node, err)
	}
	if r.Error != "" {
		return r, fmt.Errorf("%s on node %s: %s", verb, node, r.Error)
	}
	return r, nil
}

// HandleCommands answers commands to node by the handler of their verb, each in a goroutine of its own, until ctx ends. A
// handler's error becomes the reply's. Malformed commands are answered with an error and never reach a handler.
func (b *Bus) HandleCommands(ctx context.Context, node string, handlers map[string]func(context.Context, Command) (Reply, error)) error {
	sub, err := b.nc.Subscribe(subject(commandPrefix, b.cluster, node)+".*", func(m *nats.Msg) {
		go b.answer(ctx, m, node, handlers)
	})
	if err != nil {
		return fmt.Errorf("commands of node %s: %w", node, err)
	}
	<-ctx.Done()
	return sub.Unsubscribe()
}

func (b *Bus) answer(ctx context.Context, m *nats.Msg, node string, handlers map[string]func(context.Context, Command) (Reply, error)) {
	verb, ours := strings.CutPrefix(m.Subject, subject(commandPrefix, b.cluster, node)+".")
	if !ours || m.Reply == "" { // no question: for example a server's acknowledgement that another client had sent here
		b.log.Warn("message on a command's subject is not a command; ignored", "subject", m.Subject)
		return
	}
	var c Command
	r := Reply{Node: node}
	handle, known := handlers[verb]
	if err := json.Unmarshal(m.Data, &c); err != nil {
		r.Error = fmt.Sprintf("malformed %s command: %v", verb, err)
	} else if !known {
		r.Error = fmt.Sprintf("unknown command %q", verb)
	} else {
		ctx, cancel := context.WithTimeout(ctx, commandTimeout(c))
		defer cancel()
		if r, err = handle(ctx, c); err != nil {
			r.Error = err.Error()
		}
		r.Node = node
	}
	raw, err := json.Marshal(r)
	if err == nil {
		err = m.Respond(raw)
	}
	if err != nil {
		b.log.Warn("answer a command", "verb", verb, "error", err)
	}
}

// commandTimeout leaves a handler its own deadline and a little more, so that its answer says who did not.
func commandTimeout(c Command) time.Duration {
	if c.DeadlineMS > 0 {
		return time.Duration(c.DeadlineMS)*time.Millisecond + time.Second
	}
	return 10 * time.Second
}
