package natsexporter

import (
	"strconv"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/exporter/exportertest"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/collector/findings"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// BenchmarkFinding is a finding on its way to the bus, until it and its condition are stored. The server is in the same process, so its work
// counts too.
func BenchmarkFinding(b *testing.B) {
	s, err := bus.StartServer(bus.ServerOptions{Dir: b.TempDir(), Port: -1})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Stop()
	x, err := newExporter(exportertest.NewNopSettings(Type), config(s.URL()))
	if err != nil {
		b.Fatal(err)
	}
	if err := x.Start(b.Context(), componenttest.NewNopHost()); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = x.Shutdown(b.Context()) }()
	n := 0
	send := func() {
		n++
		e := fault(n)
		e.ID = event.NewID(e.Source, strconv.Itoa(n))
		ld, err := findings.Records([]finding.Finding{{Event: e, Key: "xid/79 gpu/GPU-1", BootID: "boot-1", Active: true}})
		if err != nil {
			b.Fatal(err)
		}
		if err := x.ConsumeLogs(b.Context(), ld); err != nil {
			b.Fatal(err)
		}
		for c, conditions := x.counts(); c.Waiting+conditions > 0; c, conditions = x.counts() {
			time.Sleep(20 * time.Microsecond)
		}
	}
	send()
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
}
