package xidreceiver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"golang.org/x/sys/unix"

	"github.com/pitcrew/pitcrew/receivers/xidreceiver/internal/tail"
	"github.com/pitcrew/pitcrew/semconv"
)

// A consumer beside the detector, such as an exporter to elsewhere, fails for reasons of its own.
func TestAConsumerThatRefusesHoldsUpNoLaterFault(t *testing.T) {
	for name, refused := range map[string]error{"a temporary error": errors.New("queue is full"), "a permanent error": consumererror.NewPermanent(errors.New("too large"))} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var tries atomic.Int64
			r.refuse = func() error {
				if tries.Add(1) == 1 {
					return refused
				}
				return nil
			}
			r.start()
			r.log.xid("0000:1a:00", 31)
			r.log.xid("0000:1b:00", 79)
			if rec := r.next(); rec.code() != 79 {
				t.Errorf("%+v", rec)
			}
			if n := r.metric(semconv.KernelRecordsRefused); n != 1 {
				t.Errorf("%d refused", n)
			}
		})
	}
}

func TestALogThatIsNotThereIsWaitedFor(t *testing.T) {
	r := newRig(t)
	dir := filepath.Dir(r.cfg.Path)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	r.start()
	if err := r.status(componentstatus.StatusRecoverableError); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if n := r.said.FilterMessageSnippet("cannot be read").Len(); n != 1 {
		t.Errorf("said %d times", n)
	}
	if r.readable() {
		t.Error("the pipeline was told that it can be read")
	}
	begun := time.Now()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.log.create()
	r.log.xid("0000:1a:00", 79)
	if rec := r.next(); rec.code() != 79 {
		t.Errorf("%+v", rec)
	}
	if d := time.Since(begun); d >= retryUnwatched {
		t.Errorf("taken after %v: by the clock, not by the watch", d)
	}
	r.status(componentstatus.StatusOK)
	if n := r.said.FilterMessageSnippet("cannot be read").Len(); n != 1 {
		t.Errorf("said %d times", n)
	}
	if !r.readable() || len(r.heard) != 0 {
		t.Error("the pipeline was not told that it can be read again, once")
	}
}

func TestOfALogThatCanBeReadNothingIsSaid(t *testing.T) {
	r := newRig(t).start()
	r.log.xid("0000:1a:00", 79)
	r.next()
	r.stop()
	if n := len(r.heard); n != 0 {
		t.Errorf("said %d times", n)
	}
}

// unreadable is a log that can be opened, and no more.
type unreadable struct{ tail.Source }

func (unreadable) Next(time.Time) ([]byte, error) { return nil, unix.EIO }

func TestALogThatCanBeOpenedAndNotReadIsSaidToBeUnreadOnce(t *testing.T) {
	r := newRig(t)
	var broken atomic.Int64
	r.open = func(ctx context.Context, path string) (tail.Source, error) {
		src, err := tail.Open(ctx, path)
		if err == nil && broken.Add(1) <= 2 {
			src = unreadable{src}
		}
		return src, err
	}
	r.start()
	if r.readable() {
		t.Error("said to be readable")
	}
	r.log.xid("0000:1a:00", 79)
	if rec := r.next(); rec.code() != 79 || broken.Load() != 3 {
		t.Errorf("%+v after it was opened %d times", rec, broken.Load())
	}
	if !r.readable() || len(r.heard) != 0 {
		t.Error("what can be read again was not said once")
	}
}

func TestALogThatMayNotBeReadIsReadOnceItMay(t *testing.T) {
	r := newRig(t)
	var closed atomic.Bool // root may read anything, so the refusal is made here
	closed.Store(true)
	r.open = func(ctx context.Context, path string) (tail.Source, error) {
		if closed.Load() {
			return nil, &os.PathError{Op: "open", Path: path, Err: unix.EPERM}
		}
		return tail.Open(ctx, path)
	}
	r.start()
	r.status(componentstatus.StatusRecoverableError)
	if r.readable() {
		t.Error("the pipeline was told that it can be read")
	}
	said := r.said.FilterMessageSnippet("cannot be read").All()
	if len(said) != 1 || !strings.Contains(said[0].ContextMap()["remedy"].(string), "CAP_SYSLOG") {
		t.Errorf("%v", said)
	}
	r.log.xid("0000:1a:00", 79)
	closed.Store(false)
	begun := time.Now()
	if err := os.Chmod(r.cfg.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	if rec := r.next(); rec.code() != 79 || time.Since(begun) >= retryUnwatched {
		t.Errorf("%+v after %v", rec, time.Since(begun))
	}
	if !r.readable() {
		t.Error("the pipeline was not told that it can be read")
	}
}

func TestALogThatVanishesIsTakenUpWhenItIsBack(t *testing.T) {
	r := newRig(t).start()
	r.log.xid("0000:1a:00", 31)
	r.next()
	if err := os.Remove(r.cfg.Path); err != nil {
		t.Fatal(err)
	}
	r.status(componentstatus.StatusRecoverableError)
	r.log.create()
	r.log.xid("0000:1b:00", 79)
	if rec := r.next(); rec.code() != 79 || rec.flag(semconv.History) {
		t.Errorf("%+v", rec)
	}
	r.status(componentstatus.StatusOK)
}

func TestSomethingThatIsNoLogIsSaidSo(t *testing.T) {
	r := newRig(t)
	r.cfg.Path = filepath.Dir(r.cfg.Path)
	r.start()
	if err := r.status(componentstatus.StatusRecoverableError); err == nil || !strings.Contains(err.Error(), "neither a device, a pipe nor a file") {
		t.Errorf("%v", err)
	}
}

// The kernel gives no process facility 0, so a line with another was written by one, whatever it says.
func TestALineThatAProcessWroteIsNoFault(t *testing.T) {
	const userNotice, userWarning = 1<<3 + 5, 1<<3 + 4
	forge := func(r *rig) {
		r.log.raw(fmt.Sprintf("%d,500,1000,-;NVRM: GPU at PCI:0000:1b:00: GPU-11111111-2222-3333-4444-555555555555\n", userNotice))
		r.log.raw(fmt.Sprintf("%d,501,1001,-;systemd[1]: Started a service\n", userNotice))
		r.log.raw(fmt.Sprintf("%d,502,1002,-;NVRM: Xid (PCI:0000:1a:00): 79, pid=1, name=a, GPU has fallen off the bus.\n", userWarning))
		r.log.raw(fmt.Sprintf("%d,503,1003,-;NVRM: Xid (PCI:0000:1a:00): 48, pid=1, name=a, made up\n", userWarning))
		r.log.raw("4,504,1004,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=a, real\n")
	}
	r := newRig(t).start()
	forge(r)
	if rec := r.next(); rec.code() != 31 || rec.attrs[semconv.HWID] != nil {
		t.Errorf("%+v, though a process wrote what comes before it", rec)
	}
	if n := r.metric(semconv.KernelLinesForged); n != 2 {
		t.Errorf("%d forged lines counted, want 2", n)
	}
	if n := r.said.FilterMessageSnippet("passed over").Len(); n != 1 {
		t.Errorf("said %d times", n)
	}

	r = newRig(t)
	r.cfg.UserRecords = true
	r.start()
	forge(r)
	if rec := r.next(); rec.code() != 79 {
		t.Errorf("%+v, though they are asked for", rec)
	}
}
