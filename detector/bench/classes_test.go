package bench

import (
	"os"
	"testing"
)

func TestClassesNameTheSlowDriverAndNoEqualOne(t *testing.T) {
	runs := recordings(t)
	f, err := Classes(os.Getenv("PITCREW_DATA"), runs)
	if err != nil {
		t.Fatal(err)
	}
	if d := f.Drawn; d.N < 100 || float64(d.False) > 0.01*float64(d.N) || d.Recall[0] < 0.9 || d.Recall[1] < 0.99 || d.Wrong[0]+d.Wrong[1] > 0 {
		t.Errorf("%+v", d)
	}
}
