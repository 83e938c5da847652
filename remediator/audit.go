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
	"github.com/pitcrew/pitcrew/remediator/page"
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
	Actor    string    `json:"actor,omitempty"`  // the person, of what a person did on the incident page
	Reason   string    `json:"reason,omitempty"` // that the person gave
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
	if err := a.append(l); err != nil {
		a.log.Error("audit log", "error", err)
	}
}

// append adds a line to the file, if there is one. The caller holds mu.
func (a *audit) append(l auditLine) error {
	if a.file == nil {
		return nil
	}
	raw, err := json.Marshal(l)
	if err == nil {
		_, err = a.file.Write(append(raw, '\n'))
	}
	return err
}

// person records what a person does on the incident page: before it is done, and again with what came of it.
func (a *audit) person(act page.Act) error {
	l := auditLine{At: time.Now(), Stage: "intent", Verb: act.Verb, Object: act.Object, Incident: act.Incident, Actor: act.Actor, Reason: act.Reason}
	if act.Done {
		l.Stage = "done"
		if act.Err != nil {
			l.Error = act.Err.Error()
		}
	}
	a.log.Info("a person acts", "actor", l.Actor, "stage", l.Stage, "verb", l.Verb, "object", l.Object, "incident", l.Incident, "reason", l.Reason, "error", l.Error)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.append(l)
}

// of hands over what was written for an incident since it last asked.
func (a *audit) of(id string) []incident.Write {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.by[id]
	delete(a.by, id)
	return out
}
