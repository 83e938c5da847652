package rules

import (
	"fmt"
	"strconv"
	"strings"
)

// XID is one row of the Xid table.
type XID struct {
	Code      int       `json:"code"`
	Name      string    `json:"name"`
	Mnemonic  string    `json:"mnemonic,omitempty"`
	Class     string    `json:"class"`
	Severity  Severity  `json:"severity"`
	Advice    Advice    `json:"advice"`
	AppCaused AppCaused `json:"app_caused"`
	Role      Role      `json:"role"`
	// Clears is the code whose condition this one ends; 0 for none.
	Clears           int      `json:"clears,omitempty"`
	Official         string   `json:"official,omitempty"`
	OfficialFollowup string   `json:"official_followup,omitempty"`
	Note             string   `json:"note,omitempty"`
	Sources          []string `json:"sources,omitempty"`
	Known            bool     `json:"known"`
	// Overridden is true for a row that an operator's file changed or added.
	Overridden bool `json:"overridden,omitempty"`
}

// SXid is one row of the NVSwitch table.
type SXid struct {
	Code     int      `json:"code"`
	Name     string   `json:"name"`
	Mnemonic string   `json:"mnemonic,omitempty"`
	Block    string   `json:"block,omitempty"`
	Fatality Fatality `json:"fatality"`
	// Advice holds where the line says Fatal or nothing, AdviceNonFatal where it says Non-fatal.
	Advice         Advice   `json:"advice"`
	AdviceNonFatal Advice   `json:"advice_nonfatal"`
	Clears         int      `json:"clears,omitempty"`
	Note           string   `json:"note,omitempty"`
	Sources        []string `json:"sources,omitempty"`
	Known          bool     `json:"known"`
	Overridden     bool     `json:"overridden,omitempty"`
}

// Judge says severity and advice of the code on a line that ends it with
// "Fatal" (fatal true) or "Non-fatal"; said is false when the line had neither.
// The line decides, except that an always-fatal code is fatal whatever it says.
func (r SXid) Judge(fatal, said bool) (Severity, Advice) {
	switch {
	case r.Fatality == AlwaysFatal, said && fatal:
		return Fatal, r.Advice
	case said, r.Fatality == NonFatal:
		return Warning, r.AdviceNonFatal
	case !r.Known:
		return Warning, r.Advice
	default:
		return Critical, r.Advice
	}
}

// Recovery is a recovery action of the driver, as Xid 154 prints it.
type Recovery struct {
	Value      int      `json:"value"`
	Action     string   `json:"action"`
	Severity   Severity `json:"severity"`
	Advice     Advice   `json:"advice"`
	Note       string   `json:"note,omitempty"`
	Known      bool     `json:"known"`
	Overridden bool     `json:"overridden,omitempty"`
}

// Signal is a kernel line without a code.
type Signal struct {
	Kind       string   `json:"kind"`
	Name       string   `json:"name"`
	Severity   Severity `json:"severity"`
	Advice     Advice   `json:"advice"`
	Note       string   `json:"note,omitempty"`
	Overridden bool     `json:"overridden,omitempty"`
}

// column is one field of a table: how a cell's text becomes the field's value.
// The same columns serve the files compiled in and an operator's YAML.
type column[R any] struct {
	name     string
	required bool
	set      func(*R, string) error
}

func text[R any](name string, required bool, field func(*R) *string) column[R] {
	return column[R]{name, required, func(r *R, v string) error { *field(r) = v; return nil }}
}

func number[R any](name string, required bool, field func(*R) *int) column[R] {
	return column[R]{name, required, func(r *R, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 1<<20 {
			return fmt.Errorf("%q is not a code", v)
		}
		*field(r) = n
		return nil
	}}
}

func oneOf[R any, W ~string](name string, words []W, field func(*R) *W) column[R] {
	return column[R]{name, true, func(r *R, v string) error { return word(field(r), v, words) }}
}

func list[R any](name string, field func(*R) *[]string) column[R] {
	return column[R]{name, false, func(r *R, v string) error {
		*field(r) = nil
		for s := range strings.SplitSeq(v, ";") {
			if s = strings.TrimSpace(s); s != "" {
				*field(r) = append(*field(r), s)
			}
		}
		return nil
	}}
}

var xidColumns = []column[XID]{
	number("code", true, func(r *XID) *int { return &r.Code }),
	text("name", true, func(r *XID) *string { return &r.Name }),
	text("mnemonic", false, func(r *XID) *string { return &r.Mnemonic }),
	oneOf("class", classes, func(r *XID) *string { return &r.Class }),
	oneOf("severity", severities, func(r *XID) *Severity { return &r.Severity }),
	oneOf("advice", advices, func(r *XID) *Advice { return &r.Advice }),
	oneOf("app_caused", appCauses, func(r *XID) *AppCaused { return &r.AppCaused }),
	oneOf("role", roles, func(r *XID) *Role { return &r.Role }),
	number("clears", false, func(r *XID) *int { return &r.Clears }),
	text("official", false, func(r *XID) *string { return &r.Official }),
	text("official_followup", false, func(r *XID) *string { return &r.OfficialFollowup }),
	text("note", false, func(r *XID) *string { return &r.Note }),
	list("sources", func(r *XID) *[]string { return &r.Sources }),
}

var sxidColumns = []column[SXid]{
	number("code", true, func(r *SXid) *int { return &r.Code }),
	text("name", true, func(r *SXid) *string { return &r.Name }),
	text("mnemonic", false, func(r *SXid) *string { return &r.Mnemonic }),
	text("block", false, func(r *SXid) *string { return &r.Block }),
	oneOf("fatality", sxidFatalities, func(r *SXid) *Fatality { return &r.Fatality }),
	oneOf("advice", advices, func(r *SXid) *Advice { return &r.Advice }),
	oneOf("advice_nonfatal", advices, func(r *SXid) *Advice { return &r.AdviceNonFatal }),
	number("clears", false, func(r *SXid) *int { return &r.Clears }),
	text("note", false, func(r *SXid) *string { return &r.Note }),
	list("sources", func(r *SXid) *[]string { return &r.Sources }),
}

var recoveryColumns = []column[Recovery]{
	number("value", true, func(r *Recovery) *int { return &r.Value }),
	text("action", true, func(r *Recovery) *string { return &r.Action }),
	oneOf("severity", severities, func(r *Recovery) *Severity { return &r.Severity }),
	oneOf("advice", advices, func(r *Recovery) *Advice { return &r.Advice }),
	text("note", false, func(r *Recovery) *string { return &r.Note }),
}

var signalColumns = []column[Signal]{
	text("kind", true, func(r *Signal) *string { return &r.Kind }),
	text("name", true, func(r *Signal) *string { return &r.Name }),
	oneOf("severity", severities, func(r *Signal) *Severity { return &r.Severity }),
	oneOf("advice", advices, func(r *Signal) *Advice { return &r.Advice }),
	text("note", false, func(r *Signal) *string { return &r.Note }),
}
