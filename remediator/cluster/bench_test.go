package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// What stands between a decision and its effect, with the whole sandbox on the same machine. Run with -benchtime 30x or so.

func BenchmarkCordon(b *testing.B) {
	s := kube(b)
	c := start(b, asRemediator(s), cluster.Options{})
	for b.Loop() {
		if _, err := c.Cordon(b.Context(), "b3", "inc-1"); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if _, err := c.Uncordon(b.Context(), "b3", "inc-1"); err != nil {
			b.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // until the watch has caught up, as it has in life
		b.StartTimer()
	}
}

func BenchmarkReserveUntilTheAPIServerKnows(b *testing.B) {
	s := kube(b)
	c := start(b, asRemediator(s), cluster.Options{})
	index := 0
	for b.Loop() {
		r := cluster.Reservation{Incident: "inc-1", Node: "b3", OwnerUID: "11111111-0000-0000-0000-000000000000", Index: &index}
		if err := c.Reserve(b.Context(), r); err != nil {
			b.Fatal(err)
		}
		if err := c.WaitReservationSeen(b.Context(), r); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := c.Release(b.Context(), "inc-1"); err != nil {
			b.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		b.StartTimer()
	}
}

func BenchmarkFastReplaceUntilTheReplacementRuns(b *testing.B) {
	s := kube(b)
	c := start(b, asRemediator(s), cluster.Options{})
	_, g := gang(b, s, c, 1)
	m := g.Members[0]
	for b.Loop() {
		if _, err := c.ReplacePod(b.Context(), m, cluster.ReplaceOptions{Incident: "inc-1", FastReplace: true}); err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(b.Context(), 20*time.Second)
		next, err := c.AwaitReplacement(ctx, g, 0, cluster.Running, m.PodUID)
		cancel()
		if err != nil {
			b.Fatal(err)
		}
		m = next
		b.StopTimer()
		time.Sleep(1500 * time.Millisecond) // nothing of this round is left in the Job controller's queue
		b.StartTimer()
	}
}
