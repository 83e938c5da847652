package remediator

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// audit records every write to the cluster before it is sent and again with its answer: in a file, and with its incident.
type audit struct {
	log  *slog.Logger
	mu   sync.Mutex
	file *os.File
	by   map[string][]incident.Write // not yet taken by the incident's record
}

// auditLine is one line of the audit file.
type auditLine struct {
	At       time.Time `json:"at"`
	Stage    string    `json:"stage"` // intent | done
	Verb     string    `json:"verb"`
	Object   string    `json:"object"`
	UID      string    `json:"uid,omitempty"`
	Incident string    `json:"incident,omitempty"`
	What     string    `json:"what,omitempty"`
	DryRun   bool      `json:"dry_run,omitempty"`
	TookS    float64   `json:"took_s,omitempty"`
	Error    string    `json:"error,omitempty"`
}

func newAudit(path string, log *slog.Logger) (*audit, error) {
	a := &audit{log: log, by: map[string][]incident.Write{}}
	if path == "" {
		return a, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	a.file = f
	return a, nil
}

func (a *audit) close() {
	if a.file != nil {
		_ = a.file.Close()
	}
}

// maxUntaken bounds what waits for an incident's next record.
const maxUntaken = 200

func (a *audit) write(_ context.Context, w cluster.Write) {
	object := w.Kind + " " + w.Name
	if w.Namespace != "" {
		object = w.Kind + " " + w.Namespace + "/" + w.Name
	}
	l := auditLine{At: time.Now(), Stage: "intent", Verb: w.Verb, Object: object, UID: w.UID, Incident: w.Incident, What: w.What, DryRun: w.DryRun}
	if w.Done {
		l.Stage, l.TookS = "done", w.Latency.Seconds()
		if w.Err != nil {
			l.Error = w.Err.Error()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.Done && !w.DryRun && w.Incident != "" && len(a.by[w.Incident]) < maxUntaken {
		a.by[w.Incident] = append(a.by[w.Incident], incident.Write{
			At: l.At, Verb: w.Verb, Object: object + ": " + w.What, UID: w.UID, TookS: l.TookS, Error: l.Error,
		})
	}
	if a.file == nil {
		return
	}
	raw, err := json.Marshal(l)
	if err == nil {
		_, err = a.file.Write(append(raw, '\n'))
	}
	if err != nil {
		a.log.Error("audit log", "error", err)
	}
}

// of hands over what was written for an incident since it last asked.
func (a *audit) of(id string) []incident.Write {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.by[id]
	delete(a.by, id)
	return out
}
