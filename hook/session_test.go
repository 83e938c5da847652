package hook

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

const helloLine = `{"t":"hello","v":1,"role":"rank","rank":0,"local_rank":0,"world_size":1,"attempt":0,"pid":1,"tomorrow":[1]}` + "\n"

// serve listens in a pod's directory and gives each connection to f.
func serve(t *testing.T, f func(net.Conn)) *Dir {
	t.Helper()
	d, path := openTestDir(t)
	at, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = at.Close() }()
	ln, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", at.Fd(), SocketName(0)))
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = c.Close() }()
				f(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		all.Wait()
	})
	return d
}

func connect(t *testing.T, d *Dir) *Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := Connect(ctx, d, SocketName(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestTheListenersProcessIsTheKernelsWordAndTheEndIsSeenAtOnce(t *testing.T) {
	d := serve(t, func(c net.Conn) { _, _ = io.WriteString(c, helloLine) })
	s := connect(t, d)
	select {
	case <-s.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the end of the connection was not seen")
	}
	if h, ok := s.Hello(); !ok || h.PID != 1 || s.PeerPID() != os.Getpid() {
		t.Errorf("hello %+v, peer %d, want %d", h, s.PeerPID(), os.Getpid())
	}
	if !errors.Is(s.Err(), io.EOF) {
		t.Errorf("error %v", s.Err())
	}
	if _, err := s.Request(context.Background(), Ping{}); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("a question after the end: %v", err)
	}
}

func TestAPeerThatBreaksTheProtocolIsLeft(t *testing.T) {
	for name, says := range map[string]string{
		"no hello first":         `{"t":"pong"}` + "\n",
		"two hellos":             helloLine + helloLine,
		"a hello of tomorrow":    strings.Replace(helloLine, `"v":1`, `"v":2`, 1),
		"no JSON":                helloLine + "GET / HTTP/1.1\n",
		"a line without an end":  helloLine + strings.Repeat("x", MaxLine+1),
		"a line beyond its size": helloLine + `{"t":"error","error":"` + strings.Repeat("x", MaxLine) + `"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			hold := make(chan struct{})
			d := serve(t, func(c net.Conn) { _, _ = io.WriteString(c, says); <-hold })
			defer close(hold)
			s := connect(t, d)
			for range s.Messages() {
			}
			<-s.Done()
			if !errors.Is(s.Err(), ErrProtocol) {
				t.Errorf("error %v", s.Err())
			}
		})
	}
}

func TestAnswersFindTheirQuestionsAndTheRestIsPushed(t *testing.T) {
	d := serve(t, func(c net.Conn) {
		_, _ = io.WriteString(c, helloLine)
		in := bufio.NewScanner(c)
		var reqs []string
		for in.Scan() {
			m, err := Decode(in.Bytes())
			if err != nil {
				t.Error(err)
				return
			}
			reqs = append(reqs, m.(Arm).Req)
			if len(reqs) == 3 { // in another order, with a stranger and news in between
				for _, line := range []string{
					`{"t":"tomorrow"}`, `{"t":"armed","req":"stranger"}`, `{"t":"held","req":"b","step":5}`, `{"t":"nack","req":"c","reason":"past"}`,
					`{"t":"armed","req":"b","step":2}`, `{"t":"armed","req":"a","step":1}`,
				} {
					_, _ = io.WriteString(c, line+"\n")
				}
			}
		}
	})
	s := connect(t, d)
	var all sync.WaitGroup
	for req, want := range map[string]Message{"a": Armed{Req: "a", Step: 1}, "b": Armed{Req: "b", Step: 2}, "c": Nack{Req: "c", Reason: "past"}} {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if got, err := s.Request(ctx, Arm{Req: req}); err != nil || got != want {
				t.Errorf("%s: %#v, %v, want %#v", req, got, err, want)
			}
		})
	}
	// The answer to a stranger's question is dropped: nobody would act on it.
	if got, want := <-s.Messages(), (Held{Req: "b", Step: 5}); got != want {
		t.Errorf("pushed %#v, want %#v", got, want)
	}
	all.Wait()
	if len(s.waiting) != 0 {
		t.Errorf("%d questions are still remembered", len(s.waiting))
	}
}

func TestAQuestionEndsWithItsContext(t *testing.T) {
	hold := make(chan struct{})
	d := serve(t, func(c net.Conn) { _, _ = io.WriteString(c, helloLine); <-hold })
	defer close(hold)
	s := connect(t, d)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Request(ctx, Go{Req: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if len(s.waiting) != 0 {
		t.Error("the question is still remembered")
	}
}

func TestClosingASessionThatNobodyReadsEndsIt(t *testing.T) {
	hold := make(chan struct{})
	d := serve(t, func(c net.Conn) {
		_, _ = io.WriteString(c, helloLine+strings.Repeat(`{"t":"held","req":"x"}`+"\n", 1000))
		<-hold
	})
	defer close(hold)
	s := connect(t, d)
	<-s.Greeted()
	s.Close() // goleak finds the reader if it is stuck
}

func TestNobodyListensIsToldFromOtherErrors(t *testing.T) {
	d, _ := openTestDir(t)
	if _, err := Connect(context.Background(), d, SocketName(0)); !errors.Is(err, ErrNobodyListens) {
		t.Errorf("no socket: %v", err)
	}
	_ = d.Close()
	if _, err := Connect(context.Background(), d, SocketName(0)); err == nil || errors.Is(err, ErrNobodyListens) {
		t.Errorf("a closed directory: %v", err)
	}
}
