package xidreceiver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/semconv"
)

// The kernel's own log. A line that root writes to it comes back with a record
// head as the driver's lines have; the address makes it this test's own.
func TestALineWrittenToTheRealKernelLogIsSeen(t *testing.T) {
	w, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Skipf("/dev/kmsg cannot be written here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r := newRig(t)
	r.cfg.UserRecords = true
	r.cfg.Path, r.cfg.BootIDPath = "/dev/kmsg", createDefaultConfig().(*Config).BootIDPath
	r.start()
	now := time.Now().UnixNano() >> 10
	pci := fmt.Sprintf("f%03x:%02x:%02x", now>>16&0xfff, now>>8&0xff, now&0xff)
	// The newline matters: without it the kernel holds the record for its continuation.
	if _, err := fmt.Fprintf(w, "<4>NVRM: Xid (PCI:%s): 999, test of pitcrew's xid receiver\n", pci); err != nil {
		t.Fatal(err)
	}
	rec := r.mine(pci)
	if rec.code() != 999 || rec.flag(semconv.History) || !strings.Contains(rec.body, "pitcrew") || rec.attrs[semconv.BootID] == "" {
		t.Errorf("%+v", rec)
	}
	seq := rec.attrs[semconv.KmsgSeq]
	r.stop()

	// The ring is read from its beginning again: now the line is history.
	r.start()
	if rec := r.mine(pci); !rec.flag(semconv.History) || rec.attrs[semconv.KmsgSeq] != seq {
		t.Errorf("after a restart: %+v", rec)
	}
}

// mine waits for the record with an address; others may write to the kernel's log too.
func (r *rig) mine(pci string) record {
	r.t.Helper()
	for {
		if rec := r.next(); rec.attrs[semconv.HWPCI] == pci {
			return rec
		}
	}
}
