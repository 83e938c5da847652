package hook_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

// recorded is one line of testdata/previous/round.jsonl.
type recorded struct {
	From       string `json:"from"`
	Line       string `json:"line"`
	Reconnects bool   `json:"reconnects"`
}

func previousRound() (all []recorded, err error) {
	f, err := os.Open("testdata/previous/round.jsonl")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for in := bufio.NewScanner(f); in.Scan(); {
		var r recorded
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

const envPrevious = "PITCREW_PREVIOUS_RANK"

// previousMain is the rank of the previous release: it plays the recorded round in the directory that the environment names, checks
// every byte that it is sent, and then dies. It does not return if the environment names one.
func previousMain() {
	dir := os.Getenv(envPrevious)
	if dir == "" {
		return
	}
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "previous rank:", err)
			os.Exit(3)
		}
	}
	all, err := previousRound()
	fail(err)
	at, err := os.Open(dir)
	fail(err)
	ln, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", at.Fd(), hook.SocketName(0)))
	fail(err)
	for len(all) > 0 {
		c, err := ln.Accept()
		fail(err)
		in := bufio.NewScanner(c)
		in.Buffer(nil, hook.MaxAgentLine)
		for len(all) > 0 && !all[0].Reconnects {
			if all[0].From == "rank" {
				_, err = io.WriteString(c, all[0].Line+"\n")
				fail(err)
			} else if !in.Scan() {
				fail(fmt.Errorf("the agent left before %s", all[0].Line))
			} else {
				var got, want any
				fail(json.Unmarshal(in.Bytes(), &got))
				fail(json.Unmarshal([]byte(all[0].Line), &want))
				if !reflect.DeepEqual(got, want) {
					fail(fmt.Errorf("heard %s, want %s", in.Bytes(), all[0].Line))
				}
			}
			all = all[1:]
		}
		if len(all) > 0 { // the agent is replaced
			for in.Scan() {
			}
			all = all[1:]
			_ = c.Close()
		}
	}
	os.Exit(1)
}

// TestARankOfThePreviousReleaseGoesThroughARoundAndAnIncidentWithThisAgent replaces the agent in the middle of the round, as an upgrade
// of the node's agent does while the pods keep the hook that they started with.
func TestARankOfThePreviousReleaseGoesThroughARoundAndAnIncidentWithThisAgent(t *testing.T) {
	root := t.TempDir()
	dir := hooktest.Pod(t, root, podUID)
	packed, err := os.Open("testdata/previous/ring.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packed.Close() }()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, hook.RingName(0)), ring, 0o644); err != nil {
		t.Fatal(err)
	}
	rank := exec.Command(os.Args[0])
	rank.Env, rank.Stderr = append(os.Environ(), envPrevious+"="+dir), os.Stderr
	if err := rank.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rank.Process.Kill() })

	first, events := watch(t, root)
	a := next(t, events, hook.RankAttached)
	if h := a.Hello; h.Attempt != 3 || h.WorldSize != 1 || !h.CanSave || h.Strategy != "ddp" || h.CkptDir != "/ckpt" {
		t.Errorf("hello %+v", h)
	}
	s, err := a.Rank.Ring().Snapshot()
	if err != nil || s.Attempt != 3 || s.Step != 40 || s.Section != hook.SectionHeld || s.CkptStep != 40 || s.Exit != hook.ExitRunning {
		t.Errorf("ring %+v, %v", s, err)
	}
	if records, err := a.Rank.Ring().Records(&s, 0, 100); err != nil || len(records) != 40 || records[39].Step != 40 || records[39].Loss != 0.25 || records[39].Duration <= 0 {
		t.Errorf("%d records, %v", len(records), err)
	}
	round := func(r *hook.Rank, m hook.Message, want string) hook.Message {
		t.Helper()
		got, err := ask(t, r, m)
		if err != nil || fmt.Sprintf("%T", got) != "hook."+want {
			t.Fatalf("%#v: %#v, %v, want %s", m, got, err, want)
		}
		return got
	}
	round(a.Rank, hook.Ping{}, "Pong")
	arm := hook.Arm{Req: "inc/1", Attempt: 3, AtStep: 40, DeadlineMS: 20_000}
	stale := arm
	stale.Attempt = 2
	if n := round(a.Rank, stale, "Nack").(hook.Nack); n.Reason != "attempt" {
		t.Errorf("%+v", n)
	}
	round(a.Rank, arm, "Armed")
	if m := next(t, events, hook.RankSaid).Message; m != (hook.Held{Req: "inc/1", Attempt: 3, Step: 40}) {
		t.Errorf("said %#v", m)
	}
	first.Close() // the agent is upgraded between arm and go

	_, events = watch(t, root)
	r := next(t, events, hook.RankAttached).Rank
	round(r, arm, "Armed")
	saved := round(r, hook.Go{Req: "inc/1", Attempt: 3}, "Saved").(hook.Saved)
	if saved.Error != "" || saved.Step != 40 || len(saved.Files) != 1 || saved.Files[0].Bytes != 17 || saved.Files[0].CRC32 != "395b41a6" {
		t.Errorf("%+v", saved)
	}
	m := hook.Manifest{Req: "inc/1", Attempt: 3, Step: 40, Dir: saved.Dir, Files: saved.Files, WorldSize: 1, Writers: []int{0}}
	if got := round(r, m, "Manifested").(hook.Manifested); got.Error != "" || got.CRC32 != "3eeec59a" {
		t.Errorf("%+v", got)
	}
	round(r, hook.Release{Req: "inc/1", Attempt: 3}, "Released")
	if err := rank.Wait(); err == nil || err.Error() != "exit status 1" {
		t.Errorf("the rank of the previous release: %v", err)
	}
	x := next(t, events, hook.RankExited).Exit
	if x.Attempt != 3 || x.Bye || x.Error != "RuntimeError: boom" || time.Since(x.At) > soon {
		t.Errorf("exit %+v", x)
	}
}
