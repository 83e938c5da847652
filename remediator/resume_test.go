package remediator

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/notify"
)

// hung is a bucket whose listing does not end.
type hung struct{ records }

func (hung) List(ctx context.Context) ([]bus.Change[notify.Record], error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// stored is a bucket with these records.
type stored struct {
	records
	all []notify.Record
}

func (l stored) List(context.Context) (out []bus.Change[notify.Record], err error) {
	for _, r := range l.all {
		out = append(out, bus.Change[notify.Record]{Value: r})
	}
	return out, nil
}

// started is an engine that reports its incidents as soon as it is started.
type started struct {
	r   *remediator
	all []*incident.Incident
	at  time.Time
}

func (s *started) Start(context.Context) error {
	s.at = time.Now()
	for _, i := range s.all {
		if i.Open() {
			s.r.tell(i)
		}
	}
	return nil
}

func (s *started) Incidents() (open, all []*incident.Incident) { return nil, s.all }

// resumed is what a new leader reports that finds these records and incidents, and how long the incidents waited for their start.
func resumed(t *testing.T, told records, rs []notify.Receiver, all ...*incident.Incident) (waited time.Duration) {
	t.Helper()
	d := notify.New(notify.Options{Receivers: rs})
	r := &remediator{o: Options{Cluster: "c", Log: slog.New(slog.DiscardHandler)}, notices: d, metrics: newMetrics(), told: told}
	s, begin := &started{r: r, all: all}, time.Now()
	if err := r.resume(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.Run(ctx) // sends what waits
	return s.at.Sub(begin)
}

func TestHealingWaitsAtMostFiveSecondsForTheRecordOfNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if waited := resumed(t, hung{}, nil, opened()); waited != 0 {
			t.Errorf("without a receiver: %v", waited)
		}
		e := &ear{}
		if waited := resumed(t, hung{}, []notify.Receiver{e}, opened()); waited != 5*time.Second || len(e.heard) == 0 {
			t.Errorf("the incidents start after %v, %q is reported", waited, stages(e.heard))
		}
	})
}

func TestANewLeaderDoesNotSendAgainWhatItsIncidentsReportWhenTheyStart(t *testing.T) {
	told := stored{all: []notify.Record{{Incident: "inc-1", Deliveries: []notify.Delivery{{Receiver: "ear", Key: "inc-1/opened", Stage: notify.Opened}}}}}
	e := &ear{}
	resumed(t, told, []notify.Receiver{e}, opened())
	if len(e.heard) != 0 {
		t.Errorf("sent again: %q", stages(e.heard))
	}
}

func TestTheCloseOfAParentIsOwedUnderItsFirstChild(t *testing.T) {
	parent := opened(func(i *incident.Incident) {
		i.ID, i.State, i.Outcome, i.ClosedAt = "parent", incident.Closed, incident.Recovered, t0 // long ago
		i.Group = &incident.Group{First: "child-1", Children: []incident.Child{{ID: "child-1", Node: "a1"}, {ID: "child-2", Node: "a2"}}, Joined: t0}
	})
	grown := notify.Delivery{Receiver: "ear", Key: "parent/updated/2", Stage: notify.Updated}
	closed := notify.Delivery{Receiver: "ear", Key: "parent/closed", Stage: notify.Closed}
	for want, its := range map[string][]notify.Delivery{"closed": {grown}, "": {grown, closed}} {
		e := &ear{}
		resumed(t, stored{all: []notify.Record{{Incident: "child-1", Deliveries: its}}}, []notify.Receiver{e}, parent)
		if got := stages(e.heard); want == "" && len(got) > 0 || want != "" && !slices.Equal(got, []string{want}) {
			t.Errorf("reported %q, want %q", got, want)
		}
	}
}
