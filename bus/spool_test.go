package bus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pitcrew/pitcrew/event"
)

// faulty fails the n-th call of a file system. After a crash all later calls fail, too, as the process is gone.
type faulty struct {
	disk
	at, calls int
	fault     string // error, full or crash
	crashed   bool
}

func (f *faulty) call() error {
	f.calls++
	switch {
	case f.crashed:
		return errors.New("the process is gone")
	case f.calls != f.at:
		return nil
	case f.fault == "full":
		return syscall.ENOSPC
	case f.fault == "crash":
		f.crashed = true
		return errors.New("the process is gone")
	}
	return syscall.EIO
}

func (f *faulty) MkdirAll(dir string) error {
	if err := f.call(); err != nil {
		return err
	}
	return f.disk.MkdirAll(dir)
}

func (f *faulty) Names(dir string) ([]string, error) {
	if err := f.call(); err != nil {
		return nil, err
	}
	return f.disk.Names(dir)
}

func (f *faulty) Read(path string) ([]byte, error) {
	if err := f.call(); err != nil {
		return nil, err
	}
	return f.disk.Read(path)
}

// Write leaves a part of the file behind when it fails, as a full disk and a crash do.
func (f *faulty) Write(path string, b []byte) error {
	gone := f.crashed
	if err := f.call(); err != nil {
		if !gone {
			_ = f.disk.Write(path, b[:len(b)/2])
		}
		return err
	}
	return f.disk.Write(path, b)
}

func (f *faulty) Rename(from, to string) error {
	if err := f.call(); err != nil {
		return err
	}
	return f.disk.Rename(from, to)
}

func (f *faulty) Remove(path string) error {
	if err := f.call(); err != nil {
		return err
	}
	return f.disk.Remove(path)
}

// away is a bus whose server never comes.
func away(t *testing.T) *Bus {
	t.Helper()
	b, err := Connect(Options{URL: "nats://127.0.0.1:1", Cluster: "demo.eu"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func endNow(t *testing.T, p *Publisher) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = p.Close(ctx)
}

// TestTheSpoolLosesNothingThatItAcceptedWhateverCallFails makes each call of the spool fail once, by an error, a full disk and a crash. An
// event whose Publish returned nil, and each that was in the spool before, is there for the next process.
func TestTheSpoolLosesNothingThatItAcceptedWhateverCallFails(t *testing.T) {
	const before, after = 3, 3
	for _, fault_ := range []string{"error", "full", "crash"} {
		for at := 1; ; at++ {
			dir := filepath.Join(t.TempDir(), "spool")
			b := away(t)
			old, err := b.NewPublisher(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			accepted := map[string]bool{}
			for i := range before {
				if err := old.Publish(fault(i)); err != nil {
					t.Fatal(err)
				}
				accepted[fault(i).ID] = true
			}
			endNow(t, old)
			for name, content := range map[string]string{"0" + spoolSuffix: "{torn", "00" + spoolSuffix + temporarySuffix: "{to"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}

			f := &faulty{at: at, fault: fault_}
			if p, err := b.newPublisher(dir, nil, f); err == nil {
				for i := before; i < before+after; i++ {
					if p.Publish(fault(i)) == nil {
						accepted[fault(i).ID] = true
					}
				}
				p.forget(messageOf(t, fault(before))) // as if it was acknowledged
				endNow(t, p)
			}
			done := f.calls < at

			next, err := b.NewPublisher(dir, nil)
			if err != nil {
				t.Fatalf("%s at call %d: %v", fault_, at, err)
			}
			next.mu.Lock()
			for id := range accepted {
				if !next.held[id] && id != fault(before).ID {
					t.Errorf("%s at call %d: %s is lost", fault_, at, id)
				}
			}
			next.mu.Unlock()
			endNow(t, next)
			left, err := filepath.Glob(filepath.Join(dir, "*"+temporarySuffix))
			if err != nil || len(left) > 0 {
				t.Errorf("%s at call %d: incomplete files are left: %v, %v", fault_, at, left, err)
			}
			if done {
				if at < 10 {
					t.Fatalf("only %d calls", at)
				}
				break
			}
		}
	}
}

func TestOneUnreadableFileCostsNoOtherAndNoRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	b := away(t)
	p, err := b.NewPublisher(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := p.Publish(fault(i)); err != nil {
			t.Fatal(err)
		}
	}
	endNow(t, p)
	if err := syscall.Mkfifo(filepath.Join(dir, "0-pipe"+spoolSuffix), 0o600); err != nil { // reading it would wait for ever
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "1-folder"+spoolSuffix), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err = b.NewPublisher(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer endNow(t, p)
	if got := p.Counts().Waiting; got != 3 {
		t.Errorf("%d findings were taken up, want 3", got)
	}
	if err := p.Publish(fault(9)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(p.path(messageOf(t, fault(9)))); err != nil {
		t.Errorf("the spool is in memory only: %v", err)
	}
}

func TestAFullDiskLeavesNoIncompleteFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	f := &faulty{fault: "full"}
	p, err := away(t).newPublisher(dir, nil, f)
	if err != nil {
		t.Fatal(err)
	}
	defer endNow(t, p)
	f.at = f.calls + 1
	if err := p.Publish(fault(1)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if err := p.Publish(fault(1)); err != nil { // there is room again
		t.Error(err)
	}
}

func TestNoAddressIsPrintedWithItsSecret(t *testing.T) {
	for in, want := range map[string]string{
		"nats://ann:s3cret@h:1":                "nats://ann:xxxxx@h:1",
		"nats://s3cret@h:1":                    "nats://xxxxx@h:1",
		"nats://h:1, tls://ann:s3cret@i:2":     "nats://h:1,tls://ann:xxxxx@i:2",
		"nats://ann:s3%zz@h":                   "(an address that cannot be read)",
		"ann:s3cret@h:1":                       "",
		"h:1":                                  "",
		"nats://h:1?token=s3cret":              "",
		"nats://h:1/s3cret":                    "",
		fmt.Sprintf("ws://ann:%s@h", "s3cret"): "ws://ann:xxxxx@h",
	} {
		got := Redacted(in)
		if strings.Contains(got, "s3cret") || want != "" && got != want {
			t.Errorf("%s is printed as %s, want %s", in, got, want)
		}
	}
	if _, err := Connect(Options{URL: "nats://ann:s3cret@h:port"}); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("error %v", err)
	}
}

func messageOf(t *testing.T, e event.Event) event.Message {
	t.Helper()
	m, err := event.NewMessage(e)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
