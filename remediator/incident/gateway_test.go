package incident

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// straggler is what a gateway says of a rank: the node is the rank's, the source is not.
func (s *stage) straggler(job string, rank int) event.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.gangs["job-"+job].Member(rank / nproc)
	return at("rank/straggler", m.Node, func(e *event.Event) {
		e.Type, e.Source = event.Anomaly, event.GatewaySource("c", "gw-0", "detector")
		e.Data.Target.PodUID, e.Data.Target.Rank, e.Data.Target.Job = m.PodUID, &rank, &event.Job{UID: "job-" + job}
		e.Data.Severity = event.Warning
	})
}

func TestWhatAgentAndGatewayFindOfOneRankIsOneIncident(t *testing.T) {
	for name, gatewayFirst := range map[string]bool{"the agent first": false, "the gateway first": true} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				agent, gateway := at("gpu/row-remap", "n1"), s.straggler("train", 0)
				if gatewayFirst {
					s.says(gateway)
					s.says(agent)
				} else {
					s.says(agent)
					s.says(gateway)
				}
				i := s.closes(time.Minute, Recovered) // the only one there is
				if joined := len(i.Joined) == 1; joined == gatewayFirst || len(i.Faults) != 1 {
					t.Errorf("faults %+v, joined %+v", i.Faults, i.Joined)
				}
				if n := s.count("evict train-0-1"); n != 1 {
					t.Errorf("did %q", s.did)
				}
			})
		})
	}
}

func TestARankThatWasComparedUnderAnotherJobsNameIsLeftAlone(t *testing.T) {
	on(t, func(s *stage) {
		s.plans["rank/straggler"] = s.plans["rank/hung"]
		e := s.straggler("train", 0)
		e.Data.Target.Job.UID = "job-other"
		s.says(e)
		time.Sleep(5 * time.Second)
		if n := s.e.Noted()["pod of another job"]; n != 1 {
			t.Errorf("noted %v", s.e.Noted())
		}
		s.wantDid()
	})
}
