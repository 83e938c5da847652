package page

import (
	"net/http"
	"time"
)

// Would is an incident that a policy only observed, and what it would have done.
type Would struct {
	ID, Signal, Node, Job string
	Policy, Rule          string
	Actions               []string
	Refused               string // by which guard it would have been held back
	At                    time.Time
	People                string // what a person did about it; empty: nothing is known
	PeopleAt              time.Time
	Agrees                bool
}

// Deed is something that a person did that Pitcrew would not have done.
type Deed struct {
	At           time.Time
	Node, Action string
}

// Week is what Pitcrew would have done in one week, beside what people did.
type Week struct {
	From       time.Time // Monday, UTC
	Name       string
	Incidents  []Would
	OnlyPeople []Deed
	Agree      int // the person did one of the same actions
	Differ     int // the person did something else, or a guard stood against it
	Alone      int // only Pitcrew would have acted
	Approved   int // answers of people in mode approve
	Rejected   int
	More       int // incidents that are not listed
}

type observedView struct {
	head
	Weeks []Week
	Wrong string // why the comparison is missing
	Total int
}

// weeksShown and wouldShown bound the page.
const (
	weeksShown = 13
	wouldShown = 100
)

func (p *Page) serveObserved(w http.ResponseWriter, r *http.Request, who *Person) {
	v := observedView{head: p.head(w, r, who, "What Pitcrew would have done")}
	v.Nav, v.Live = "observed", true
	weeks, err := p.o.Weeks(p.mirror.all())
	if err != nil {
		v.Wrong = clean(err.Error(), maxText)
	}
	for k := range weeks {
		v.Total += len(weeks[k].Incidents)
		if extra := len(weeks[k].Incidents) - wouldShown; extra > 0 {
			weeks[k].Incidents, weeks[k].More = weeks[k].Incidents[:wouldShown], extra
		}
		if extra := len(weeks[k].OnlyPeople) - wouldShown; extra > 0 {
			weeks[k].OnlyPeople = weeks[k].OnlyPeople[:wouldShown]
		}
	}
	v.Weeks = weeks[:min(len(weeks), weeksShown)]
	for k := range v.Weeks {
		scrub(&v.Weeks[k])
	}
	p.show(w, r, http.StatusOK, "observed", v)
}
