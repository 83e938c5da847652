package page

import (
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxText bounds each text that is shown, in bytes. A kernel line is below 1 KiB.
const maxText = 2048

// clean makes a text safe to show: on a page, and in a terminal into which it is copied. Characters that are not printed, or that change the
// direction of what follows, are shown as their code point. A text that is too long is cut.
func clean(s string, limit int) string {
	whole := len(s)
	cut := whole > limit
	if cut {
		s = s[:limit]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
		if r, n := utf8.DecodeLastRuneInString(s); r == utf8.RuneError && n == 1 {
			s = s[:len(s)-1]
		}
	}
	if strings.ContainsFunc(s, hidden) || !utf8.ValidString(s) {
		var b strings.Builder
		for _, r := range s {
			switch {
			case r == '\n' || r == '\t':
				b.WriteByte(' ')
			case hidden(r):
				fmt.Fprintf(&b, "‹U+%04X›", r)
			default:
				b.WriteRune(r) // of a byte that is no character: U+FFFD
			}
		}
		s = b.String()
	}
	if cut {
		s += fmt.Sprintf(" … (cut, %d bytes in all)", whole)
	}
	return s
}

// hidden reports whether a character is not shown as itself: controls, marks of direction, and others without a glyph.
func hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp) || r == '\u115f' || r == '\u3164'
}

var timeType = reflect.TypeFor[time.Time]()

// scrub cleans every text within v, a pointer, so that no template can forget one.
func scrub(v any) { scrubValue(reflect.ValueOf(v).Elem()) }

func scrubValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(clean(v.String(), maxText))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			scrubValue(v.Elem())
		}
	case reflect.Struct:
		for k := range v.NumField() {
			if v.Type() != timeType && v.Type().Field(k).IsExported() {
				scrubValue(v.Field(k))
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() != reflect.Uint8 { // raw JSON is cleaned when it is decoded
			for k := range v.Len() {
				scrubValue(v.Index(k))
			}
		}
	case reflect.Map:
		scrubMap(v)
	}
}

// scrubMap replaces what a map holds, since neither keys nor values of it can be set.
func scrubMap(v reflect.Value) {
	if v.IsNil() {
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), v.Len())
	for _, k := range v.MapKeys() {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		key.Set(k)
		value.Set(v.MapIndex(k))
		scrubValue(key)
		scrubValue(value)
		out.SetMapIndex(key, value)
	}
	if v.CanSet() {
		v.Set(out)
	}
}
