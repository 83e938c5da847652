package incidentcmd

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/answer"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

var began = time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)

// shown is a screen with incidents, the newest last.
func shown(t *testing.T, respond func(id, word, question string) (string, error), all ...incident.Incident) (s *screen, press func(keys ...string) string) {
	t.Helper()
	s = newScreen(respond, func() time.Time { return began.Add(10 * time.Minute) })
	send := func(m tea.Msg) tea.Cmd { _, cmd := s.Update(m); return cmd }
	send(tea.WindowSizeMsg{Width: 100, Height: 30})
	for _, i := range all {
		send(i)
	}
	send(current{})
	return s, func(keys ...string) string {
		t.Helper()
		for _, k := range keys {
			msg := tea.KeyPressMsg{Text: k, Code: []rune(k)[0]}
			if code, ok := map[string]rune{"down": tea.KeyDown, "up": tea.KeyUp, "pgdown": tea.KeyPgDown, "end": tea.KeyEnd}[k]; ok {
				msg = tea.KeyPressMsg{Code: code}
			}
			if cmd := send(msg); cmd != nil {
				send(cmd())
			}
		}
		lines := s.lines()
		if len(lines) != 30 {
			t.Errorf("%d lines on a terminal of 30", len(lines))
		}
		for _, l := range lines {
			if utf8.RuneCountInString(l) > 100 {
				t.Errorf("a line of %d columns: %q", utf8.RuneCountInString(l), l)
			}
		}
		return strings.Join(lines, "\n")
	}
}

func one(n int, state incident.State, edit func(*incident.Incident)) incident.Incident {
	i := incident.Incident{ID: fmt.Sprintf("inc-%d", n), State: state, Opened: began.Add(time.Duration(n) * time.Second),
		Faults: []incident.Fault{{Signal: fmt.Sprintf("xid/%d", n), Node: fmt.Sprintf("node-%d", n), At: began}}}
	if edit != nil {
		edit(&i)
	}
	return i
}

func asking(i *incident.Incident) {
	i.Plan = &incident.Plan{NeedsApproval: true, Policy: "p", Rule: "r"}
}

func TestTheListHasOpenIncidentsFirstAndTheSelectedOneInFull(t *testing.T) {
	_, press := shown(t, nil, one(1, incident.Planned, nil), one(3, incident.Closed, nil), one(2, incident.Planned, nil))
	view := press()
	if a, b, c := strings.Index(view, " inc-2 "), strings.Index(view, " inc-1 "), strings.Index(view, " inc-3 "); a < 0 || a > b || b > c {
		t.Errorf("order %d %d %d:\n%s", a, b, c, view)
	}
	if !strings.Contains(view, "▸ inc-2") || !strings.Contains(view, "fault      xid/2 on node-2") || !strings.Contains(view, "2 open of 3 incidents") {
		t.Error(view)
	}
	if view = press("down"); !strings.Contains(view, "▸ inc-1") || !strings.Contains(view, "fault      xid/1 on node-1") {
		t.Error(view)
	}
	if view = press("down", "down", "down"); !strings.Contains(view, "▸ inc-3") {
		t.Errorf("beyond the end:\n%s", view)
	}
	if view = press("o"); strings.Contains(view, "inc-3") || !strings.Contains(view, "only open ones") {
		t.Error(view)
	}
}

func TestTheSelectedIncidentStaysSelectedWhileOthersAreOpened(t *testing.T) {
	s, press := shown(t, nil, one(1, incident.Planned, nil), one(2, incident.Planned, nil))
	press("down")
	s.Update(one(9, incident.Planned, nil))
	if view := press(); !strings.Contains(view, "▸ inc-1") {
		t.Error(view)
	}
}

func TestAnAnswerIsSentOnlyAfterItIsConfirmed(t *testing.T) {
	var sent []string
	first := one(1, incident.Planned, asking)
	respond := func(id, word, question string) (string, error) {
		if len(sent) == 0 && question != answer.Question(&first) {
			t.Errorf("the answer is for another question than was shown")
		}
		sent = append(sent, id+" "+word)
		if len(sent) > 1 {
			return "", errors.New("it was answered meanwhile")
		}
		return "approved by ann", nil
	}
	s, press := shown(t, respond, first)
	if view := press("a"); len(sent) != 0 || !strings.Contains(view, `inc-1: answer "approved"? y confirms`) {
		t.Errorf("%v\n%s", sent, view)
	}
	if view := press("x"); len(sent) != 0 || !strings.Contains(view, "nothing was answered") {
		t.Errorf("%v\n%s", sent, view)
	}
	press("a")
	s.Update(one(5, incident.Planned, asking)) // a newer one appears above while the question is open
	changed := one(1, incident.Planned, asking)
	changed.Round = 2
	s.Update(changed) // and the incident asks something else
	if view := press("y"); len(sent) != 1 || sent[0] != "inc-1 "+incident.Approves || !strings.Contains(view, "inc-1: approved by ann") {
		t.Errorf("%v\n%s", sent, view)
	}
	if view := press("r", "y"); len(sent) != 2 || !strings.Contains(view, "it was answered meanwhile") {
		t.Errorf("%v\n%s", sent, view)
	}
	s.Update(one(1, incident.Closed, nil))
	s.selected = "inc-1"
	if view := press("a", "y"); len(sent) != 2 || !strings.Contains(view, "inc-1 does not wait for an answer") && !strings.Contains(view, "select") {
		t.Errorf("%v\n%s", sent, view)
	}
}

func TestHostileTextDoesNotControlTheScreen(t *testing.T) {
	_, press := shown(t, nil, one(1, incident.Planned, func(i *incident.Incident) {
		i.Faults[0].Node = "\x1b[2Jowned\u202e"
		i.Notes = []incident.Note{{At: began, State: incident.Planned, Text: strings.Repeat("\x1b]0;title\x07", 2000)}}
	}))
	if view := press("pgdown"); strings.ContainsAny(view, "\x1b\x07\u202e") {
		t.Errorf("%q", view)
	}
}

func TestTheFirstLineSaysThatEverythingIsPaused(t *testing.T) {
	s, press := shown(t, nil)
	s.Update(bus.KillSwitch{On: true, By: "ann", Since: began})
	if view := press(); !strings.HasPrefix(view, "Pitcrew is paused by ann") || !strings.Contains(view, "No incident.") {
		t.Error(view)
	}
}

func TestASmallTerminalShowsWhatFits(t *testing.T) {
	s, _ := shown(t, nil, one(1, incident.Planned, nil), one(2, incident.Planned, nil))
	for _, size := range [][2]int{{20, 6}, {1, 1}, {0, 0}, {300, 100}} {
		s.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		if lines := s.lines(); len(lines) != max(1, size[1]) {
			t.Errorf("%v: %d lines", size, len(lines))
		}
	}
}

func TestAWatchThatEndsLeavesTheScreen(t *testing.T) {
	s, _ := shown(t, nil)
	_, cmd := s.Update(failed{errors.New("NATS is gone")})
	if cmd == nil || s.failed == nil {
		t.Error("it stays")
	}
}
