// Package safetext makes text safe to show. Records carry lines of kernel logs and words of training processes, whose authors are not trusted:
// a control character could hide a line, and a mark of direction could turn its meaning around.
package safetext

import (
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Clean makes a text safe to show: on a page, and in a terminal into which it is copied. Characters that are not printed, or that change the
// direction of what follows, are shown as their code point. A text of more bytes than limit is cut.
func Clean(s string, limit int) string {
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
	if strings.ContainsFunc(s, Hidden) || !utf8.ValidString(s) {
		var b strings.Builder
		for _, r := range s {
			switch {
			case r == '\n' || r == '\t':
				b.WriteByte(' ')
			case Hidden(r):
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

// Hidden reports whether a character is not shown as itself: controls, marks of direction, and others without a glyph.
func Hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp) || r == '\u115f' || r == '\u3164'
}

var timeType = reflect.TypeFor[time.Time]()

// CleanAll cleans every text within v, a pointer, so that nobody can forget one.
func CleanAll(v any, limit int) { value(reflect.ValueOf(v).Elem(), limit) }

func value(v reflect.Value, limit int) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(Clean(v.String(), limit))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			value(v.Elem(), limit)
		}
	case reflect.Struct:
		for k := range v.NumField() {
			if v.Type() != timeType && v.Type().Field(k).IsExported() {
				value(v.Field(k), limit)
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() != reflect.Uint8 { // raw JSON is cleaned when it is decoded
			for k := range v.Len() {
				value(v.Index(k), limit)
			}
		}
	case reflect.Map:
		entries(v, limit)
	}
}

// entries replaces what a map holds, since neither keys nor values of it can be set.
func entries(v reflect.Value, limit int) {
	if v.IsNil() {
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), v.Len())
	for _, k := range v.MapKeys() {
		key, val := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		key.Set(k)
		val.Set(v.MapIndex(k))
		value(key, limit)
		value(val, limit)
		out.SetMapIndex(key, val)
	}
	if v.CanSet() {
		v.Set(out)
	}
}
