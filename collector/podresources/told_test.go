package podresources

import (
	"reflect"
	"strconv"
	"testing"
)

func TestAnExportersWordCountsWhereTheKubeletsNamesSayNothing(t *testing.T) {
	r := newRig(t, true, container("t", "a", "main", "Ascend910-1"), container("t", "g", "main", "GPU-1"))
	r.ask(t)
	r.LearnHolders("NPU-1", []Holder{{"t", "b", "main"}}) // the scheduler chose another chip than the kubelet
	r.LearnHolders("GPU-1", []Holder{{"t", "forged", "main"}})
	r.LearnHolders("NPU-2", []Holder{{"t", "c", "main"}, {"u", "d", "main"}})
	for device, want := range map[string][]string{"NPU-1": {"t/b/main"}, "GPU-1": {"t/g/main"}, "NPU-2": {"t/c/main", "u/d/main"}, "NPU-3": nil} {
		if got := names(r.Holders(device)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is held by %v, want %v", device, got, want)
		}
	}
	r.clock.pass(KeepFor)
	if got := names(r.Holders("NPU-1")); !reflect.DeepEqual(got, []string{"t/b/main"}) {
		t.Errorf("held by %v within ten minutes", got)
	}
	r.clock.pass(1)
	if got := r.Holders("NPU-1"); got != nil {
		t.Errorf("held by %v after ten minutes", got)
	}
}

func TestWhatExportersSayIsBoundedAndOldWordsMakeRoom(t *testing.T) {
	r := newRig(t, false)
	many := make([]Holder, 2*maxHolders)
	for i := range maxDevices + 10 {
		r.LearnHolders("NPU-"+strconv.Itoa(i), many)
	}
	if n, held := len(r.told), len(r.told["NPU-0"].by); n != maxDevices || held != maxHolders {
		t.Errorf("%d devices, %d holders", n, held)
	}
	r.clock.pass(KeepFor + 1)
	r.LearnHolders("NPU-new", []Holder{{"t", "a", "main"}})
	if len(r.told) != 1 || len(r.Holders("NPU-new")) != 1 {
		t.Errorf("%d devices are remembered", len(r.told))
	}
}
