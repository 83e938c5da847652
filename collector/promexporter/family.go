package promexporter

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"
)

// format is a form in which a page is served.
type format int

const (
	text format = iota
	openMetrics
	formats
)

// family is one metric of a page.
type family struct {
	name, help string
	kind       kind
	id         uint64
	series     []*series
	unsorted   bool
	by         map[string]*series // by labels
	version    uint64             // rises with each change

	encoded [formats]struct { // belongs to the scrape that is under way
		version uint64 // 0: not yet
		text    []byte
	}
}

var (
	helpEscaper  = strings.NewReplacer("\\", `\\`, "\n", `\n`)
	labelEscaper = strings.NewReplacer("\\", `\\`, "\n", `\n`, "\"", `\"`)
)

// written is how labels are written, with braces; empty without labels.
func written(labels []label) string {
	if len(labels) == 0 {
		return ""
	}
	n := 1
	for _, l := range labels {
		n += len(l.name) + len(l.value) + 4
	}
	var b strings.Builder
	b.Grow(n)
	for i, l := range labels {
		if i == 0 {
			b.WriteByte('{')
		} else {
			b.WriteByte(',')
		}
		b.WriteString(l.name)
		b.WriteString(`="`)
		if strings.ContainsAny(l.value, "\\\n\"") {
			_, _ = labelEscaper.WriteString(&b, l.value)
		} else {
			b.WriteString(l.value)
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// encode gives the family's text, made anew where it changed. The caller holds the store's lock, and is the scrape under way.
func (f *family) encode(as format, timestamps bool) []byte {
	e := &f.encoded[as]
	if e.version == f.version && e.version != 0 {
		return e.text
	}
	if f.unsorted {
		f.unsorted = false
		slices.SortFunc(f.series, func(a, b *series) int { return cmp.Compare(a.labels, b.labels) })
	}
	e.version, e.text = f.version, e.text[:0]
	if len(f.series) == 0 {
		return e.text
	}
	if f.kind == histogram || f.kind == summary {
		e.text = f.rich(e.text, as)
		return e.text
	}
	if e.text == nil {
		e.text = make([]byte, 0, 2*len(f.name)+len(f.help)+32+len(f.series)*(len(f.name)+len(f.series[0].labels)+24))
	}
	out := f.head(e.text, as)
	for _, x := range f.series {
		out = append(out, f.name...)
		out = append(out, x.labels...)
		out = append(out, ' ')
		out = appendValue(out, x.value, as)
		if timestamps && x.at != 0 {
			out = append(out, ' ')
			if as == openMetrics {
				out = strconv.AppendFloat(out, float64(x.at/1e6)/1e3, 'f', -1, 64)
			} else {
				out = strconv.AppendInt(out, int64(x.at/1e6), 10)
			}
		}
		out = append(out, '\n')
	}
	e.text = out
	return out
}

// head writes the HELP and TYPE lines. OpenMetrics names a counter without its suffix, and has no counter without one.
func (f *family) head(out []byte, as format) []byte {
	name, word := f.name, kindWords[f.kind]
	if f.kind == counter && as == openMetrics {
		var cut bool
		if name, cut = strings.CutSuffix(name, "_total"); !cut {
			word = "unknown"
		}
	}
	escaper := helpEscaper
	if as == openMetrics {
		escaper = labelEscaper
	}
	out = append(append(append(out, "# HELP "...), name...), ' ')
	out = append(append(out, escaper.Replace(f.help)...), '\n')
	out = append(append(append(out, "# TYPE "...), name...), ' ')
	return append(append(out, word...), '\n')
}

// appendValue writes a number as expfmt does.
func appendValue(out []byte, v float64, as format) []byte {
	switch {
	case math.IsNaN(v):
		return append(out, "NaN"...)
	case math.IsInf(v, 1):
		return append(out, "+Inf"...)
	case math.IsInf(v, -1):
		return append(out, "-Inf"...)
	}
	if v == 0 {
		v = 0 // and not -0
	}
	from := len(out)
	out = strconv.AppendFloat(out, v, 'g', -1, 64)
	if as == openMetrics && !bytes.ContainsAny(out[from:], "e.") {
		out = append(out, ".0"...)
	}
	return out
}

// rich writes histograms and summaries, by expfmt.
func (f *family) rich(out []byte, as format) []byte {
	t := dto.MetricType_HISTOGRAM
	if f.kind == summary {
		t = dto.MetricType_SUMMARY
	}
	mf := &dto.MetricFamily{Name: proto.String(f.name), Help: proto.String(f.help), Type: &t}
	for _, x := range f.series {
		if x.rich != nil {
			mf.Metric = append(mf.Metric, x.rich)
		}
	}
	if len(mf.Metric) == 0 {
		return out
	}
	b := bytes.NewBuffer(out)
	if as == openMetrics {
		_, _ = expfmt.MetricFamilyToOpenMetrics(b, mf) // a buffer takes everything
	} else {
		_, _ = expfmt.MetricFamilyToText(b, mf)
	}
	return b.Bytes()
}
