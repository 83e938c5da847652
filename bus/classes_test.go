package bus

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

// classesOf are the records that are there, and what was refused.
func classesOf(t *testing.T, b *Bus) (all []string, refused []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := b.WatchClasses(ctx, cancel, func(r ClassRecord) { all = append(all, r.Gateway+"/"+r.ID+"="+string(r.Raw)) },
		func(_ string, err error) { refused = append(refused, err.Error()) })
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all, refused
}

func TestClassesOfAClusterReachItsGatewaysAndForgedOnesNobody(t *testing.T) {
	b := testBus(t)
	other, err := Connect(Options{URL: b.opts.URL, Cluster: "another"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, r := range []ClassRecord{{"gw.0", "a", []byte("1")}, {"gw.0", "a", []byte("2")}, {"gw-1", "a", []byte("3")}, {"gw-1", "b", []byte("4")}} {
		if err := b.SetClass(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.SetClass(t.Context(), ClassRecord{"gw.0", "a", []byte("5")}); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveClass(t.Context(), "gw-1", "b"); err != nil {
		t.Fatal(err)
	}
	if all, refused := classesOf(t, b); !slices.Equal(all, []string{"gw-1/a=3", "gw.0/a=2"}) || len(refused) != 0 {
		t.Errorf("classes %q, refused %q", all, refused)
	}
	for key, r := range map[string]ClassRecord{
		"demo.eu\n@gw-1\nx":  {"gw.0", "x", []byte("1")},
		"demo.eu\n@gw-1\ny":  {"gw-1", "z", []byte("1")},
		"demo.eu\n@gw-1\nw":  {"gw-1", "w", nil},
		"demo.eu\n@gw-1\nv":  {"gw-1", strings.Repeat("v", 300), []byte("1")},
		"demo.eu\n@gw-1\nxx": {"gw-1", "xx", bytes.Repeat([]byte("x"), maxClassRaw+1)},
	} {
		err := b.classes().Set(t.Context(), key, r)
		if big := len(r.Raw) > maxClassRaw; !big && err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.js.Publish(t.Context(), "$KV."+ClassBucket+".demo=2Eeu.=40gw-1.garbled", []byte("{")); err != nil {
		t.Fatal(err)
	}
	if all, refused := classesOf(t, b); len(all) != 2 || len(refused) < 5 {
		t.Errorf("classes %q, refused %q", all, refused)
	}
	for _, r := range []ClassRecord{{"gw-1", "a", nil}, {"", "a", []byte("1")}, {"gw-1", "a", make([]byte, maxClassRaw+1)}} {
		if err := b.SetClass(t.Context(), r); err == nil {
			t.Errorf("%s/%s of %d bytes was taken", r.Gateway, r.ID, len(r.Raw))
		}
	}
}

func TestAGatewayMayGiveItsOwnClassesAndReadAll(t *testing.T) {
	url := guarded(t)
	root, gw := connect(t, url("pitcrew")), connect(t, url("other"))
	if err := root.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := gw.SetClass(ctx, ClassRecord{"gw-0", "a", []byte("1")}); err != nil {
		t.Error(err)
	}
	if err := root.SetClass(ctx, ClassRecord{"gw-1", "a", []byte("2")}); err != nil {
		t.Error(err)
	}
	if all, _ := classesOf(t, gw); len(all) != 2 {
		t.Errorf("it reads %q", all)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := gw.SetClass(short, ClassRecord{"gw-1", "a", []byte("3")}); err == nil {
		t.Error("it may give as another gateway")
	}
}
