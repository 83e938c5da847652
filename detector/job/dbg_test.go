package job
import ("testing";"github.com/pitcrew/pitcrew/detector/class")
func TestDbg(t *testing.T){
	f := newFleet(t, class.Config{})
	f.past(3, gpt, 1)
	g := f.job(gpt)
	scheduled(g, 1)
	for range 500 {
		for _,x:=range g.run(1) { t.Log(g.step, x.Event.Type, x.Event.Data.Evidence.Baseline, x.Event.Data.Evidence.Raw) }
	}
	a := f.e.recent.Front().Value.(*attempt)
	ref:=a.class.ref
	for s:=270;s<320;s+=3 { t.Log(s, ref.At(s), ref.Work(s)) }
}
