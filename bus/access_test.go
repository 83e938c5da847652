package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestANATSThatIsAwayIsNamedWithTheCauseTheTimeAndWhatToDo(t *testing.T) {
	const closed = "nats://127.0.0.1:1"
	strict, err := StartServer(ServerOptions{Dir: t.TempDir(), Port: -1, Auth: `authorization { user: "ann", password: "s3cret" }`})
	if err != nil {
		t.Fatal(err)
	}
	defer strict.Stop()
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	go func() {
		for {
			c, err := web.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			c.Close()
		}
	}()
	wrong := strings.Replace(strict.URL(), "nats://", "nats://ann:s3cret2@", 1)
	for name, c := range map[string]struct {
		url   string
		wait  time.Duration
		wants []string
	}{
		"nobody listens":          {closed, 50 * time.Millisecond, []string{closed + " is not reachable", "connection refused", "--nats or PITCREW_NATS"}},
		"refused once":            {strict.URL(), time.Millisecond, []string{strict.URL() + " refuses this client", "let this client in", "PITCREW_NATS_TOKEN_FILE"}},
		"refused again":           {strict.URL(), time.Second, []string{strict.URL() + " refuses this client", "Authorization Violation", "PITCREW_NATS_CREDS"}},
		"a wrong password":        {wrong, time.Second, []string{"nats://ann:xxxxx@127.0.0.1", "Authorization Violation"}},
		"something else listens":  {"nats://" + web.Addr().String(), time.Millisecond, []string{"is not reachable", "does not greet as NATS does", "PITCREW_NATS"}},
		"two, and nobody listens": {closed + ",nats://t0ken@127.0.0.1:2", 50 * time.Millisecond, []string{closed + ",nats://xxxxx@127.0.0.1:2 is not reachable", "connection refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := Connect(Options{URL: c.url})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			ctx, cancel := context.WithTimeout(t.Context(), c.wait)
			defer cancel()
			err = b.Wait(ctx)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%v", err)
			}
			for _, want := range append(c.wants, ", tried for ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			for _, not := range []string{"deadline", "s3cret", "t0ken", "\n"} {
				if strings.Contains(err.Error(), not) {
					t.Errorf("%q is in: %v", not, err)
				}
			}
		})
	}
}

func TestAFileThatIsNotThereIsNamedWithTheServerThatIsNotAsked(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for variable, o := range map[string]Options{"PITCREW_NATS_TOKEN_FILE": {TokenFile: none}, "PITCREW_NATS_CREDS": {Creds: none}} {
		o.URL = "nats://127.0.0.1:1"
		_, err := Connect(o)
		for _, want := range []string{o.URL, none, "no such file", variable} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in: %v", want, err)
			}
		}
	}
}

func TestAnAnswerThatDoesNotComeIsToldWithTheServersName(t *testing.T) {
	b := testBus(t)
	late := fmt.Errorf("bucket x: %w", context.DeadlineExceeded)
	err := b.Explain(late)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), b.opts.URL+" is reached, and does not answer in time: bucket x; ") {
		t.Errorf("%v", err)
	}
	other := errors.New("other")
	if b.Explain(nil) != nil || b.Explain(other) != other || b.Explain(err) != err {
		t.Error("an error that says all is changed")
	}
}
