package kernel

import "github.com/pitcrew/pitcrew/rules"

// Verdict is what the tables say of an event.
type Verdict struct {
	Name     string
	Severity rules.Severity
	Advice   rules.Advice
	Role     rules.Role
	// Clears is the code whose condition the event ends (its own for Xid 154
	// going back to None); 0 for none.
	Clears int
	Known  bool
	// Investigate is the follow-up of an NVLink 5 case.
	Investigate string
}

const recoveryXid = 154

// Judge looks an event up, and completes a recovery action whose words were cut off. driver is the driver's major version, 0 for unknown.
func Judge(t *rules.Tables, e *Event, driver int) Verdict {
	switch e.Kind {
	case Xid:
		return judgeXid(t, e, driver)
	case SXid:
		r := t.SXid(e.Code)
		severity, advice := r.Judge(e.Word == Fatal, e.Word != Unsaid)
		v := Verdict{Name: r.Name, Severity: severity, Advice: advice, Role: rules.Cause, Known: r.Known, Clears: r.Clears}
		if r.Clears != 0 {
			v.Role = rules.Clear
		}
		return v
	}
	r := t.Signal(string(e.Kind), e.Case)
	return Verdict{Name: r.Name, Severity: r.Severity, Advice: r.Advice, Role: rules.Cause, Known: true}
}

func judgeXid(t *rules.Tables, e *Event, driver int) Verdict {
	r := t.XID(e.Code)
	v := Verdict{Name: r.Name, Severity: r.Severity, Advice: r.Advice, Role: r.Role, Clears: r.Clears, Known: r.Known}
	if r.Overridden && r.Role != rules.Verdict {
		return v // the operator has the last word
	}
	switch {
	case e.Code == recoveryXid && (len(e.Action) > 0 || e.ActionValue >= 0):
		action := t.Recovery(string(e.Action))
		if !action.Known && e.ActionValue >= 0 { // its words were cut off
			if action = t.RecoveryOf(e.ActionValue); action.Known {
				e.Action = []byte(action.Action)
			}
		}
		v.Severity, v.Advice = action.Severity, action.Advice
		if action.Known && action.Value == 0 {
			v.Clears = recoveryXid
		}
	case e.Unit != nil:
		if e.Regs == len(e.Reg) {
			if rule, ok := t.NVLink5(e.Code, string(e.Unit), e.Reg[0], e.Reg[1], driver); ok {
				v.Severity, v.Advice = rule.Judge()
				v.Investigate = rule.Investigate
				return v
			}
		}
		// No rule for this case: the line's own word.
		switch e.Word {
		case NonFatal:
			v.Severity = rules.Warning
		case Fatal:
			v.Severity = rules.Critical
		}
	}
	return v
}
