package verdict

import "github.com/pitcrew/pitcrew/rules"

// Verdict is what the tables say about a line.
type Verdict struct {
	Name     string
	Severity rules.Severity
	Advice   rules.Advice
	Role     rules.Role
	// Clears is the code whose condition the line ends; 0 for none. Xid 154 clears itself when it goes back to None.
	Clears int
	Known  bool
	// Investigate is the follow-up of an NVLink 5 case.
	Investigate string
}

const recoveryXid = 154

// Judge looks a line up. It completes a recovery action that was cut off.
func Judge(t *rules.Tables, l *Line) Verdict {
	switch l.Kind {
	case Xid:
		return judgeXid(t, l)
	case SXid:
		r := t.SXid(l.Code)
		severity, advice := r.Judge(l.Word == Fatal, l.Word != Unsaid)
		v := Verdict{Name: r.Name, Severity: severity, Advice: advice, Role: rules.Cause, Known: r.Known, Clears: r.Clears}
		if r.Clears != 0 {
			v.Role = rules.Clear
		}
		return v
	}
	r := t.Signal(l.Kind, l.Case)
	return Verdict{Name: r.Name, Severity: r.Severity, Advice: r.Advice, Role: rules.Cause, Known: true}
}

func judgeXid(t *rules.Tables, l *Line) Verdict {
	r := t.XID(l.Code)
	v := Verdict{Name: r.Name, Severity: r.Severity, Advice: r.Advice, Role: r.Role, Clears: r.Clears, Known: r.Known}
	if r.Overridden && r.Role != rules.Verdict {
		return v // the operator's row overrides what the line says
	}
	switch {
	case l.Code == recoveryXid && (l.Action != "" || l.ActionValue != nil):
		action := t.Recovery(l.Action)
		if !action.Known && l.ActionValue != nil {
			if action = t.RecoveryOf(*l.ActionValue); action.Known {
				l.Action = action.Action
			}
		}
		v.Severity, v.Advice = action.Severity, action.Advice
		if action.Known && action.Value == 0 {
			v.Clears = recoveryXid
		}
	case l.Unit != "":
		if rule, ok := nvlink5(t, l); ok {
			v.Severity, v.Advice = rule.Judge()
			v.Investigate = rule.Investigate
			return v
		}
		switch l.Word { // without a rule, the driver's word decides
		case NonFatal:
			v.Severity = rules.Warning
		case Fatal:
			v.Severity = rules.Critical
		}
	}
	return v
}

// nvlink5 finds the rule that decodes the line's registers.
func nvlink5(t *rules.Tables, l *Line) (rules.NVLink5, bool) {
	if len(l.Registers) < 2 {
		return rules.NVLink5{}, false
	}
	return t.NVLink5(l.Code, l.Unit, l.Registers[0], l.Registers[1], l.Driver)
}

// explains reports whether a line can be the cause of others.
func (v *Verdict) explains() bool { return v.Role == rules.Cause && v.Severity.Worse(rules.Info) }

// codeAloneProvesNothing reports whether a code without its line is no finding: an echo, or a verdict whose action only the line has.
func (v *Verdict) codeAloneProvesNothing() bool {
	return v.Role == rules.Echo || v.Role == rules.Verdict
}
