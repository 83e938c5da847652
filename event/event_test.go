package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

func ptr[T any](v T) *T { return &v }

func examples() map[string]Event {
	at := time.Date(2026, 11, 21, 4, 5, 6, 789000000, time.UTC)
	return map[string]Event{
		"xid79": {
			ID: NewID(Source("demo", "a2", "xid"), "boot-1", "42"), Source: Source("demo", "a2", "xid"), Type: Fault, Time: at,
			Data: Data{
				Target: Target{Cluster: "demo", Node: "a2", GPU: "GPU-0000-1", PCI: "0000:1a:00", Namespace: "train", Pod: "llm-1",
					PodUID: "u-1", Job: &Job{APIVersion: "batch/v1", Kind: "Job", Namespace: "train", Name: "llm", UID: "j-1"},
					Rank: ptr(0), LocalRank: ptr(0), WorldSize: 2, Attempt: ptr(0)},
				Cause: Cause{Kind: "xid", Code: "79", Name: "gpu_fell_off_bus"}, Severity: Fatal, Advice: "reboot-node",
				Evidence: Evidence{Signal: "xid", Baseline: "table", Raw: "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus."},
				Onset:    at, Count: 1,
			},
		},
		"stalled": {
			ID: "stall-1", Source: Source("demo", "a1", "detector"), Type: Anomaly, Time: at,
			Data: Data{Target: Target{Node: "a1", Rank: ptr(3)}, Cause: Cause{Kind: "rank", Name: "stalled"}, Severity: Warning,
				Evidence: Evidence{Signal: "pitcrew.train.step.age", Unit: "s", Value: ptr(3.5), Upper: ptr(2.0), Score: ptr(0.99), WindowS: 30, Baseline: "self"}},
		},
		"throttled": {
			ID: "throttle-1", Source: Source("demo", "a1", "detector"), Type: Anomaly, Time: at,
			Data: Data{Target: Target{Node: "a1", GPU: "GPU-0000-1", Rank: ptr(3)}, Cause: Cause{Kind: "anomaly", Name: "thermal-throttle"}, Severity: Warning,
				Evidence: Evidence{
					Signal: "pitcrew.gpu.clock", Unit: "Hz", Value: ptr(1.4e9), Expected: ptr(1.98e9), Lower: ptr(1.81e9), Upper: ptr(2.15e9), Score: ptr(0.8),
					WindowS: 8, Baseline: "self", State: StateOpen, Shape: "drift", Phase: "step", Ratio: ptr(0.71), Asked: 0.05, BaselineSamples: 900, BaselineS: 900,
					DurationS: 31.5, LostGPUSeconds: 7.2, PromQL: "avg_over_time(pitcrew_gpu_clock_hertz[8s]) < 1.81e+09",
					Samples: []Sample{{-2, 1.98e9}, {-1, 1.97e9}, {0, 1.4e9}},
					Signals: []Witness{{"hw.temperature", at, StateOpen, 0.7, ptr(91.0), ptr(64.0), "Cel"}}, Told: []string{"acknowledged by ada"},
				}, Onset: at},
		},
	}
}

func TestGoldenBytesStayAsTheyAre(t *testing.T) {
	for name, e := range examples() {
		got, err := Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".json")
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(append(got, '\n'), want) {
			t.Errorf("%s: bytes changed on the wire\n got %s\nwant %s", name, got, want)
		}
		back, err := Decode(got)
		if err != nil {
			t.Fatal(err)
		}
		e.Subject = e.Data.Target.Subject()
		if d := cmp.Diff(e, back); d != "" {
			t.Errorf("%s: decode(encode) differs: %s", name, d)
		}
	}
}

func TestUnknownFieldsSurviveAndUnknownMajorIsRefused(t *testing.T) {
	b, err := Encode(examples()["xid79"])
	if err != nil {
		t.Fatal(err)
	}
	newer := bytes.Replace(b, []byte(`"severity":`), []byte(`"confidence":{"p":0.5},"severity":`), 1)
	e, err := Decode(newer)
	if err != nil {
		t.Fatalf("a newer minor must be read: %v", err)
	}
	again, err := Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(again, []byte(`"confidence":{"p":0.5}`)) {
		t.Errorf("unknown field was lost: %s", again)
	}
	if _, err = Decode(bytes.Replace(b, []byte("fault.v1"), []byte("fault.v2"), 1)); !errors.Is(err, ErrMajor) {
		t.Errorf("unknown major: got %v, want ErrMajor", err)
	}
}

func TestWhatIsUselessIsRefusedByName(t *testing.T) {
	for name, mutate := range map[string]func(*Event){
		"no id":            func(e *Event) { e.ID = "" },
		"no source":        func(e *Event) { e.Source = "" },
		"no time":          func(e *Event) { e.Time = time.Time{} },
		"no cause":         func(e *Event) { e.Data.Cause = Cause{} },
		"unknown severity": func(e *Event) { e.Data.Severity = "bad" },
		"no target":        func(e *Event) { e.Data.Target = Target{} },
		"unknown type":     func(e *Event) { e.Type = "com.example.x" },
		"too large":        func(e *Event) { e.Data.Evidence.Raw = string(make([]byte, MaxBytes)) },
	} {
		e := examples()["xid79"]
		mutate(&e)
		if b, err := Encode(e); err == nil {
			t.Errorf("%s was encoded: %s", name, b)
		}
	}
}

func TestIDsAreStableAndTellPartsApart(t *testing.T) {
	if NewID("s", "a", "bc") == NewID("s", "ab", "c") {
		t.Error("part boundaries must matter")
	}
	if got, want := NewID("//demo/node/a2/xid", "boot-1", "42"), NewID("//demo/node/a2/xid", "boot-1", "42"); got != want {
		t.Errorf("%s != %s", got, want)
	}
	if got := Fault.Kind(); got != "fault" {
		t.Errorf("kind %q", got)
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range examples() {
		b, err := Encode(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Encode(e)
		if err != nil {
			if len(b) > MaxBytes/4 { // escaping may grow a large one over the bound
				return
			}
			t.Fatalf("decoded but not encodable: %v", err)
		}
		if !json.Valid(again) {
			t.Fatalf("invalid JSON: %s", again)
		}
	})
}

func TestAnEventInsideARecordIsSpelledAsTheRestAndOlderRecordsAreStillRead(t *testing.T) {
	e := Event{ID: "1", Source: "s", Type: Fault, Subject: "gpu", Time: time.Unix(7, 0).UTC(), Data: Data{Severity: Fatal}}
	raw, err := json.Marshal(e)
	if err != nil || !strings.HasPrefix(string(raw), `{"id":"1","source":"s","type":"`) {
		t.Errorf("%s, %v", raw, err)
	}
	var old Event
	err = json.Unmarshal([]byte(strings.NewReplacer(`"id"`, `"ID"`, `"source"`, `"Source"`, `"type"`, `"Type"`, `"subject"`, `"Subject"`, `"time"`, `"Time"`, `"data"`, `"Data"`).Replace(string(raw))), &old)
	if err != nil || !reflect.DeepEqual(old, e) {
		t.Errorf("read %+v, %v", old, err)
	}
}
