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

func TestAClassesPriorFindsAFaultThatIsThereFromTheStart(t *testing.T) {
	f, err := ColdStart(recordings(t))
	if err != nil {
		t.Fatal(err)
	}
	if f.N < 300 || f.Primed.Value < 0.97 || f.Bare.Value > 0.5 || float64(f.False) > 0.5*f.Hours {
		t.Errorf("%+v", f)
	}
}
