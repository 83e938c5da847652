package callout_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/bus/callout"
)

func TestKeysAreTheirOwnersAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if _, err := callout.ReadKeys(file); err == nil || !strings.Contains(err.Error(), "pitcrew bus keys") {
		t.Errorf("%v", err)
	}
	for range 2 { // made once
		if err := callout.MakeKeys(file); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Stat(file)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", st.Mode(), err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := callout.ReadKeys(file); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("%v", err)
	}
}
