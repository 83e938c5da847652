package incidentcmd

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/terminal"
	"github.com/pitcrew/pitcrew/remediator/answer"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// Messages to the screen, beside incidents and the kill switch.
type (
	current  struct{}            // all incidents that there were have been delivered
	failed   struct{ err error } // the watch has ended
	answered struct{ text string }
	tick     time.Time
)

// screen is the terminal view: a list of incidents, and the selected one in full.
type screen struct {
	respond func(id, word, question string) (string, error)
	now     func() time.Time

	by       map[string]incident.Incident
	list     []string // ids, open first, then newest first
	selected string   // empty: the first
	openOnly bool
	scroll   int // lines of the detail above its window

	ready   bool
	asks    string // the word that waits for y, the incident that it is for, and what that asks (answer.Question)
	asksFor string
	asked   string
	message string
	kill    bus.KillSwitch
	failed  error

	width, height int
}

func newScreen(respond func(id, word, question string) (string, error), now func() time.Time) *screen {
	return &screen{respond: respond, now: now, by: map[string]incident.Incident{}, width: 80, height: 24}
}

func (s *screen) Init() tea.Cmd { return again() }

// again redraws ages every second.
func again() tea.Cmd { return tea.Tick(time.Second, func(t time.Time) tea.Msg { return tick(t) }) }

// Update takes a message in.
func (s *screen) Update(m tea.Msg) (tea.Model, tea.Cmd) {
	switch m := m.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = m.Width, m.Height
	case incident.Incident:
		s.by[m.ID] = m
		s.order()
	case current:
		s.ready = true
	case bus.KillSwitch:
		s.kill = m
	case answered:
		s.message = m.text
	case failed:
		s.failed = m.err
		return s, tea.Quit
	case tick:
		return s, again()
	case tea.KeyPressMsg:
		return s, s.key(m.String())
	}
	return s, nil
}

// keys are what each key does.
var keys = map[string]func(s *screen) tea.Cmd{
	"q": func(*screen) tea.Cmd { return tea.Quit }, "ctrl+c": func(*screen) tea.Cmd { return tea.Quit },
	"down": func(s *screen) tea.Cmd { return s.move(1) }, "j": func(s *screen) tea.Cmd { return s.move(1) },
	"up": func(s *screen) tea.Cmd { return s.move(-1) }, "k": func(s *screen) tea.Cmd { return s.move(-1) },
	"home": func(s *screen) tea.Cmd { return s.move(-len(s.list)) }, "end": func(s *screen) tea.Cmd { return s.move(len(s.list)) },
	"pgdown": func(s *screen) tea.Cmd { return s.page(1) }, "space": func(s *screen) tea.Cmd { return s.page(1) },
	"pgup": func(s *screen) tea.Cmd { return s.page(-1) }, "b": func(s *screen) tea.Cmd { return s.page(-1) },
	"o": func(s *screen) tea.Cmd { s.openOnly = !s.openOnly; s.order(); return nil },
	"a": func(s *screen) tea.Cmd { return s.ask(incident.Approves) }, "r": func(s *screen) tea.Cmd { return s.ask(incident.Rejects) },
}

func (s *screen) key(k string) tea.Cmd {
	if word := s.asks; word != "" {
		s.asks, s.message = "", ""
		if k != "y" {
			s.message = "nothing was answered"
			return nil
		}
		id, asked := s.asksFor, s.asked // a newer incident may have been selected meanwhile
		s.message = id + ": sending…"
		return func() tea.Msg {
			said, err := s.respond(id, word, asked)
			if err != nil {
				return answered{err.Error()}
			}
			return answered{id + ": " + said}
		}
	}
	s.message = ""
	if do, ok := keys[k]; ok {
		return do(s)
	}
	return nil
}

// ask lets the user confirm an answer first.
func (s *screen) ask(word string) tea.Cmd {
	i, ok := s.by[s.id()]
	switch {
	case !ok:
	case !i.Asks():
		s.message = i.ID + " does not wait for an answer: it is " + i.Headline()
	default:
		s.asks, s.asksFor, s.asked, s.selected = word, i.ID, answer.Question(&i), i.ID
	}
	return nil
}

// id is the selected incident; empty if there is none.
func (s *screen) id() string {
	if slices.Contains(s.list, s.selected) {
		return s.selected
	}
	if len(s.list) == 0 {
		return ""
	}
	return s.list[0]
}

func (s *screen) move(by int) tea.Cmd {
	if len(s.list) > 0 {
		at := slices.Index(s.list, s.id())
		s.selected, s.scroll = s.list[max(0, min(len(s.list)-1, at+by))], 0
	}
	return nil
}

func (s *screen) page(by int) tea.Cmd {
	s.scroll = max(0, s.scroll+by*max(1, s.height/2))
	return nil
}

// order sorts the list. The selected incident stays selected.
func (s *screen) order() {
	s.list = s.list[:0]
	for id, i := range s.by {
		if !s.openOnly || i.Open() {
			s.list = append(s.list, id)
		}
	}
	closed := func(i incident.Incident) int {
		if i.Open() {
			return 0
		}
		return 1
	}
	slices.SortFunc(s.list, func(a, b string) int {
		x, y := s.by[a], s.by[b]
		return cmp.Or(cmp.Compare(closed(x), closed(y)), y.Opened.Compare(x.Opened), cmp.Compare(a, b))
	})
}

// View draws the screen.
func (s *screen) View() tea.View {
	v := tea.NewView(strings.Join(s.lines(), "\n"))
	v.AltScreen, v.WindowTitle = true, "pitcrew incidents"
	return v
}

// lines are exactly as many as the terminal has, none longer than it is wide. What others wrote is escaped.
func (s *screen) lines() []string {
	out := []string{s.title(), ""}
	rows := max(3, min(len(s.list)+1, (s.height-4)/3))
	out = append(out, s.table(rows)...)
	out = append(out, strings.Repeat("─", max(0, s.width)))
	detail := s.detail()
	room := max(1, s.height-len(out)-1)
	s.scroll = max(0, min(s.scroll, len(detail)-room))
	out = append(out, detail[s.scroll:min(len(detail), s.scroll+room)]...)
	for len(out) < s.height-1 {
		out = append(out, "")
	}
	out = append(out[:max(0, s.height-1)], s.foot(len(detail)-s.scroll-room))
	for k := range out {
		out[k] = cut(terminal.Escape(out[k]), s.width)
	}
	return out
}

func (s *screen) title() string {
	open, person := 0, 0
	for _, i := range s.by {
		if i.Open() {
			open++
			if i.NeedsPerson() || i.Asks() {
				person++
			}
		}
	}
	switch {
	case !s.ready:
		return "Pitcrew  reading incidents…"
	case s.kill.On:
		return fmt.Sprintf("Pitcrew is %s", s.kill)
	}
	text := fmt.Sprintf("Pitcrew  %d open of %d incidents", open, len(s.by))
	if person > 0 {
		text += fmt.Sprintf(", %d need an operator", person)
	}
	if s.openOnly {
		text += "  (only open ones are listed)"
	}
	return text
}

func (s *screen) table(rows int) (out []string) {
	out = append(out, fmt.Sprintf("  %-14s %8s  %-22s %-14s %-20s %s", "INCIDENT", "AGE", "SIGNAL", "NODE", "JOB", "STATE"))
	rows--
	at := max(0, slices.Index(s.list, s.id()))
	first := max(0, min(at-rows/2, len(s.list)-rows))
	for k := first; k < min(len(s.list), first+rows); k++ {
		i := s.by[s.list[k]]
		mark := " "
		if k == at {
			mark = "▸"
		}
		signal, node, job := "-", "-", "-"
		if len(i.Faults) > 0 {
			signal, node = i.Faults[0].Signal, i.Faults[0].Node
		}
		if i.Group != nil {
			node, job = fmt.Sprintf("%d nodes", len(i.Group.Nodes())), fmt.Sprintf("%d incidents", len(i.Group.Children))
		}
		if i.Job != nil {
			job = i.Job.Namespace + "/" + i.Job.Name
		}
		out = append(out, fmt.Sprintf("%s %-14s %8s  %-22s %-14s %-20s %s", mark, i.ID, s.age(&i), signal, node, job, i.Headline()))
	}
	if len(s.list) == 0 {
		out = append(out, "  No incident.")
	}
	for len(out) <= rows {
		out = append(out, "")
	}
	return out
}

func (s *screen) age(i *incident.Incident) string {
	age := max(0, s.now().Sub(i.Opened))
	switch {
	case age < time.Hour:
		return age.Round(time.Second).String()
	case age < 48*time.Hour:
		return fmt.Sprintf("%.0fh", age.Hours())
	}
	return fmt.Sprintf("%.0fd", age.Hours()/24)
}

// detail is the selected incident as `incident show` prints it, folded.
func (s *screen) detail() []string {
	i, ok := s.by[s.id()]
	if !ok {
		return nil
	}
	var text bytes.Buffer
	i.WriteFolded(&text, s.width)
	return strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
}

func (s *screen) foot(below int) string {
	switch {
	case s.asks != "":
		return fmt.Sprintf("%s: answer %q? y confirms, any other key does not", s.asksFor, s.asks)
	case s.message != "":
		return s.message
	}
	more := ""
	if below > 0 {
		more = fmt.Sprintf("  (%d more lines: PgDn)", below)
	}
	return "↑↓ select  PgUp PgDn scroll  o only open  a approve  r reject  q quit" + more
}

// cut shortens a line to a number of columns.
func cut(line string, columns int) string {
	if columns <= 0 || utf8.RuneCountInString(line) <= columns {
		return line
	}
	return string([]rune(line)[:columns-1]) + "…"
}
