package incidentcmd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/ledger"
)

func unpack(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(b)
	}
}

func TestAnExportHoldsEverythingAboutAnIncidentAndNothingElse(t *testing.T) {
	b, say := newBus(t)
	now := time.Now().UTC()
	pub, err := b.NewPublisher(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pub.Close(t.Context()) }()
	var faults []incident.Fault
	job := event.Job{Kind: "Job", Namespace: "train", Name: "llm", UID: "uid-1"}
	for id, target := range map[string]event.Target{"own": {Node: "a1"}, "other-node": {Node: "elsewhere"}, "same-node": {Node: "a1"}, "of-the-job": {Node: "a5", Job: &job}} {
		e := event.Event{ID: id, Source: "//c/node/" + target.Node + "/xid", Type: event.Fault, Time: now, Data: event.Data{Target: target, Cause: event.Cause{Kind: "xid", Name: "79"}, Severity: event.Fatal, Onset: now}}
		e.Data.Target.Cluster = "c"
		if err := pub.Publish(e); err != nil {
			t.Fatal(err)
		}
		if id == "own" {
			faults = append(faults, incident.Fault{EventID: id, Signal: "xid/79", Node: "a1", At: now, Event: e})
		}
	}
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if backlog, err := b.EventBacklog(t.Context()); err == nil && backlog.Stored == 4 {
			break
		} else if time.Since(begin) > 10*time.Second {
			t.Fatalf("%+v, %v", backlog, err)
		}
	}
	i := incident.Incident{ID: "inc-1", Cluster: "c", State: incident.Planned, Opened: now, Faults: faults, Job: &job}
	if _, err := bus.NewBucket[incident.Incident](b, bus.IncidentBucket).Put(t.Context(), i.ID, i, 0); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"a1", "elsewhere"} {
		if err := b.SetCondition(t.Context(), bus.Condition{Node: node, Key: "xid/79", Active: true, Since: now}); err != nil {
			t.Fatal(err)
		}
	}
	book := ledger.Book{Grants: []guard.Grant{{Incident: "inc-1", Policy: "p"}, {Incident: "inc-2", Policy: "q"}}}
	if err := bus.NewBucket[ledger.Book](b, bus.LedgerBucket).Set(t.Context(), ledger.Key, book); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "out.tar.gz")
	if out, err := say("export", "1", "--file", file); err != nil || !strings.Contains(out, file+": ") {
		t.Fatalf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := unpack(t, raw)
	for name, want := range map[string]string{"README.txt": `incident inc-1 of cluster "c"`, "incident.txt": "xid/79 on a1", "incident.json": `"id": "inc-1"`, "events/own.json": `"id":"own"`,
		"conditions.json": `"node": "a1"`, "grants.json": `"p": "p"`} {
		if !strings.Contains(got["inc-1/"+name], want) {
			t.Errorf("%s lacks %q:\n%s", name, want, got["inc-1/"+name])
		}
	}
	lines := got["inc-1/events.jsonl"]
	for _, id := range []string{"own", "same-node", "of-the-job"} {
		if !strings.Contains(lines, `"id":"`+id+`"`) {
			t.Errorf("events.jsonl lacks %s:\n%s", id, lines)
		}
	}
	for name, text := range got {
		if strings.Contains(text, "elsewhere") || strings.Contains(text, "inc-2") {
			t.Errorf("%s holds what does not concern the incident:\n%s", name, text)
		}
	}
	sums := got["inc-1/SHA256SUMS"]
	for name, text := range got {
		if short := strings.TrimPrefix(name, "inc-1/"); short != "SHA256SUMS" && !strings.Contains(sums, fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(text)), short)) {
			t.Errorf("no checksum of %s", short)
		}
	}
	if _, err := say("export", "inc-1", "--file", file); exit.Code(err) != exit.Refused || !strings.Contains(err.Error(), "--force") {
		t.Errorf("an existing file: %v", err)
	}
	out, err := say("export", "inc-1", "--file", file, "--force", "-o", "json")
	var answer struct {
		File     string
		Contents []string
	}
	if _, body, _ := strings.Cut(out, "{"); err != nil || json.Unmarshal([]byte("{"+body), &answer) != nil || answer.File != file || len(answer.Contents) != len(got)-1 {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := say("export", "inc-7", "--file", "-"); exit.Code(err) != exit.NotFound {
		t.Errorf("%v", err)
	}
}

func TestAnArchiveThatCannotBeWrittenLeavesNothingBehind(t *testing.T) {
	b, say := newBus(t)
	fill(t, b)
	dir := t.TempDir()
	if _, err := say("export", "inc-aa1", "--file", filepath.Join(dir, "missing", "x.tar.gz")); err == nil {
		t.Error("written into a folder that does not exist")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}
