package bench

import (
	"math"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/series"
)

// nabRates are asked of the facility profile: at the first the practical floor is away, the third is shipped, the last two are one a
// week and one a month.
var nabRates = []float64{0.2, 0.1, series.AskedShipped, 0.006, 0.0014}

// nabGap in hours is no time of a stream.
const nabGap = 2

// nabAsked counts the onsets of the alarm outside the labelled windows against what the engine was asked for.
func nabAsked(root string, rate float64) (AskedFigures, error) {
	out := AskedFigures{Asked: rate}
	labels, files, err := nabFiles(root)
	if err != nil {
		return out, err
	}
	seen, want := map[string]float64{}, map[string]float64{}
	for _, f := range files {
		name, was, last := nabName(f), false, time.Time{}
		err := nabJudge(f, rate, func(c []string, x series.Verdict) error {
			t, err := time.Parse(nabTime, c[0])
			if err != nil {
				return err
			}
			h := t.Sub(last).Hours()
			if last.IsZero() || h < 0 || h > nabGap {
				h = 0
			}
			if x.Known && !inWindow(labels[name], c[0]) {
				out.Hours += h
				want[name] += math.Min(h*rate, 1.0/series.MostOften)
				if x.Alarm && !was {
					seen[name]++
					out.Onsets++
				}
			}
			was, last = x.Alarm, t
			return nil
		})
		if err != nil {
			return out, err
		}
	}
	out.compare(seen, want)
	return out, nil
}

// inWindow compares times as text, which sorts as they do.
func inWindow(windows [][2]string, at string) bool {
	for _, w := range windows {
		if at >= strings.TrimSuffix(w[0], ".000000") && at <= strings.TrimSuffix(w[1], ".000000") {
			return true
		}
	}
	return false
}
