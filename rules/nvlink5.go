package rules

import (
	"fmt"
	"strconv"
	"strings"
)

// FirstNVLink5 and LastNVLink5 are the Xids whose lines hold registers that the rules decode.
const (
	FirstNVLink5 = 144
	LastNVLink5  = 150
)

// NVLink5 is one decode rule for Xid 144 to 150.
type NVLink5 struct {
	XID int `json:"xid"`
	// Unit is the unit as the driver prints it; alternatives are split by "/".
	Unit string `json:"unit"`
	// Before575 and From575 are the first register's patterns by driver branch.
	Before575   BitPattern `json:"intrinfo_before_575"`
	From575     BitPattern `json:"intrinfo_from_575"`
	ErrorStatus uint32     `json:"error_status"`
	AnyStatus   bool       `json:"any_error_status,omitempty"` // every value of the second register fits
	Resolution  string     `json:"resolution"`
	Investigate string     `json:"investigate"`
	Fatality    Fatality   `json:"fatality"`
	Origin      string     `json:"origin,omitempty"`
	Overridden  bool       `json:"overridden,omitempty"`
}

// Judge says severity and advice of the rule. A case that the catalogue says to
// ignore is never worse than a warning, and one left to Xid 154 is the driver's
// to judge. (Cases must not be merged by unit: the same unit has both kinds.)
func (r NVLink5) Judge() (Severity, Advice) {
	switch {
	case r.Resolution == ResolveReset && r.Fatality == RuleFatal:
		return Fatal, ResetGPU
	case r.Resolution == ResolveReset:
		return Critical, ResetGPU
	case r.Resolution == ResolveIgnore && r.Investigate == ResolveIgnore:
		return Info, None
	default:
		return Warning, None
	}
}

// Status is the second register that the rule is for, in words of the table.
func (r NVLink5) Status() string {
	if r.AnyStatus {
		return "any"
	}
	return fmt.Sprintf("%#08x", r.ErrorStatus)
}

// BitPattern matches a register: the bits of Mask must have Value.
type BitPattern struct {
	Mask  uint32 `json:"mask"`
	Value uint32 `json:"value"`
}

// Match reports whether the register fits.
func (p BitPattern) Match(reg uint32) bool { return reg&p.Mask == p.Value }

// parseBits reads 32 characters of 0, 1 and -, bit 31 first.
func parseBits(v string) (BitPattern, error) {
	var p BitPattern
	if len(v) != 32 {
		return p, fmt.Errorf("%q is not 32 characters of 0, 1 and -", v)
	}
	for _, c := range v {
		p.Mask, p.Value = p.Mask<<1, p.Value<<1
		switch c {
		case '1':
			p.Mask, p.Value = p.Mask|1, p.Value|1
		case '0':
			p.Mask |= 1
		case '-':
		default:
			return p, fmt.Errorf("%q is not 32 characters of 0, 1 and -", v)
		}
	}
	return p, nil
}

func bits(name string, field func(*NVLink5) *BitPattern) column[NVLink5] {
	return column[NVLink5]{name, true, func(r *NVLink5, v string) (err error) { *field(r), err = parseBits(v); return err }}
}

var nvlink5Columns = []column[NVLink5]{
	number("xid", true, func(r *NVLink5) *int { return &r.XID }),
	text("unit", true, func(r *NVLink5) *string { return &r.Unit }),
	bits("intrinfo_before_575", func(r *NVLink5) *BitPattern { return &r.Before575 }),
	bits("intrinfo_from_575", func(r *NVLink5) *BitPattern { return &r.From575 }),
	{"error_status", true, func(r *NVLink5, v string) error {
		if v == "any" {
			r.ErrorStatus, r.AnyStatus = 0, true
			return nil
		}
		n, err := strconv.ParseUint(v, 0, 32)
		if err != nil {
			return fmt.Errorf("%q is neither a 32-bit number nor any", v)
		}
		r.ErrorStatus, r.AnyStatus = uint32(n), false
		return nil
	}},
	oneOf("resolution", resolutions, func(r *NVLink5) *string { return &r.Resolution }),
	text("investigate", false, func(r *NVLink5) *string { return &r.Investigate }),
	oneOf("fatality", nvlinkFatalities, func(r *NVLink5) *Fatality { return &r.Fatality }),
	text("origin", false, func(r *NVLink5) *string { return &r.Origin }),
}

// names reports whether the rule's unit and the one printed name the same unit.
func (r NVLink5) names(unit string) bool {
	if r.Unit == unit {
		return true
	}
	for a := range strings.SplitSeq(r.Unit, "/") {
		for b := range strings.SplitSeq(unit, "/") {
			if a == b {
				return true
			}
		}
	}
	return false
}
