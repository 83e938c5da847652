package bench

import (
	"os"
	"testing"
)

func TestNAB(t *testing.T) {
	if err := WriteNAB(os.Getenv("PITCREW_DATA"), os.Getenv("NABOUT")); err != nil {
		t.Fatal(err)
	}
}
