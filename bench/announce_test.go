package bench

import "testing"

// The bounds are above what was measured (docs/detection-formulas.md) and far below what the same runs gave before the engine expected
// announcements to be early or late: 15.0, 12.3 and 9.2 false onsets an hour.
func TestAnnouncementsThatAreEarlyOrLateCostLittle(t *testing.T) {
	most := map[string]float64{"5 steps late": 0.2, "20 steps late": 1, "5 steps early": 0.2, "20 steps early": 0.8}
	for _, f := range announcements(recordings(t)) {
		limit, bounded := most[f.Announced]
		if bounded && (f.PerHour > limit || f.Fault.Recall.Value < 0.94) {
			t.Errorf("%s: %.2f false onsets an hour, recall %.3f", f.Announced, f.PerHour, f.Fault.Recall.Value)
		}
		delete(most, f.Announced)
	}
	if len(most) > 0 {
		t.Errorf("not measured: %v", most)
	}
}
