package bench

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pitcrew/pitcrew/detector/series"
)

// NABFigures are those of the facility profile on the streams of the Numenta Anomaly Benchmark v1.1 that are there, scored by its
// formula (Lavin and Ahmad, 2015): 100 is every window found at its left edge and nothing else, 0 is silence.
type NABFigures struct {
	Streams  int          `json:"streams"`
	Windows  int          `json:"windows"`
	Samples  int          `json:"samples"`
	Profiles []NABProfile `json:"profiles"`

	// Asked and seen where no window is. Nobody says that nothing happened there: what is seen is an upper bound of what is false.
	Asked []AskedFigures `json:"asked_against_seen_outside_windows"`
}

// NABProfile is one weighting of false rows and missed windows.
type NABProfile struct {
	Name      string  `json:"name"`
	Fitted    float64 `json:"fitted"` // threshold chosen on these very streams, as the published board does
	Threshold float64 `json:"fitted_threshold"`
	Fixed     float64 `json:"fixed"`  // at series.AlarmScore
	Onsets    float64 `json:"onsets"` // rows at which the shipped alarm rises
	Hit       int     `json:"windows_hit_by_onsets"`
	FalseRows int     `json:"false_onsets"`
	Left      float64 `json:"leave_one_category_out"` // each category at the threshold fitted on the others; the constants are the same
}

// nabWeights are the costs of a false row and of a missed window.
var nabWeights = []struct {
	name   string
	fp, fn float64
}{{"standard", .11, 1}, {"reward_low_FP", .22, 1}, {"reward_low_FN", .11, 2}}

// nabStream is a judged stream: gain is what a row is worth where it fires, before the cost of false rows, and window its window or -1.
type nabStream struct {
	category      string
	score, onset  []float64
	gain          []float64
	window        []int
	windows, from int
}

// NABQuality judges the streams below dir/nab and scores them, and counts onsets against several asked rates.
func NABQuality(dir string) (*NABFigures, error) {
	root := filepath.Join(dir, "nab")
	out, err := nabQuality(root)
	if err != nil {
		return nil, err
	}
	for _, rate := range nabRates {
		a, err := nabAsked(root, rate)
		if err != nil {
			return nil, err
		}
		out.Asked = append(out.Asked, a)
	}
	return out, nil
}

func nabQuality(root string) (*NABFigures, error) {
	all, err := nabStreams(root)
	if err != nil {
		return nil, err
	}
	out := &NABFigures{Streams: len(all)}
	var categories []string
	steps := []float64{series.AlarmScore, math.Inf(1)}
	for _, s := range all {
		out.Windows, out.Samples = out.Windows+s.windows, out.Samples+len(s.score)
		categories = append(categories, s.category)
		for _, x := range s.score {
			if x > 0 {
				steps = append(steps, x)
			}
		}
	}
	slices.Sort(steps)
	slices.Sort(categories)
	steps, categories = slices.Compact(steps), slices.Compact(categories)
	for _, w := range nabWeights {
		p := NABProfile{Name: w.name}
		norm := func(raw float64) float64 {
			n := float64(out.Windows)
			return 100 * (raw + n*w.fn) / (n * (1 + w.fn))
		}
		total := make([]float64, len(steps))
		by := map[string][]float64{}
		onsets := 0.0
		for _, s := range all {
			if by[s.category] == nil {
				by[s.category] = make([]float64, len(steps))
			}
			for i, t := range steps {
				r, _, _ := s.raw(s.score, t, w.fp, w.fn)
				total[i] += r
				by[s.category][i] += r
			}
			r, hit, wrong := s.raw(s.onset, 1, w.fp, w.fn)
			onsets, p.Hit, p.FalseRows = onsets+r, p.Hit+hit, p.FalseRows+wrong
		}
		best := argmax(total)
		fixed, _ := slices.BinarySearch(steps, series.AlarmScore)
		p.Fitted, p.Threshold, p.Fixed, p.Onsets = norm(total[best]), steps[best], norm(total[fixed]), norm(onsets)
		left := 0.0
		for _, c := range categories {
			others := slices.Clone(total)
			for i := range others {
				others[i] -= by[c][i]
			}
			left += by[c][argmax(others)]
		}
		p.Left = norm(left)
		out.Profiles = append(out.Profiles, p)
	}
	return out, nil
}

func argmax(x []float64) int {
	best := 0
	for i := range x {
		if x[i] > x[best] {
			best = i
		}
	}
	return best
}

// raw is the unnormalised score of one stream at a threshold: a window counts by its best row, or as missed.
func (s *nabStream) raw(score []float64, threshold, fp, fn float64) (sum float64, hit, wrong int) {
	best := make([]float64, s.windows)
	for i := range best {
		best[i] = math.Inf(-1)
	}
	for i := s.from; i < len(score); i++ {
		switch w := s.window[i]; {
		case score[i] < threshold:
		case w < 0:
			sum += fp * s.gain[i]
			wrong++
		default:
			best[w] = max(best[w], s.gain[i])
		}
	}
	for _, b := range best {
		if math.IsInf(b, -1) {
			sum -= fn
			continue
		}
		sum += b
		hit++
	}
	return sum, hit, wrong
}

func nabStreams(root string) ([]*nabStream, error) {
	labels, files, err := nabFiles(root)
	if err != nil {
		return nil, err
	}
	var all []*nabStream
	for _, f := range files {
		s := &nabStream{category: filepath.Base(filepath.Dir(f))}
		rows := map[string]int{}
		was := false
		err := nabJudge(f, series.AskedShipped, func(c []string, x series.Verdict) error {
			if _, ok := rows[c[0]]; !ok {
				rows[c[0]] = len(s.score)
			}
			rise := 0.0
			if x.Alarm && !was {
				rise = 1
			}
			s.score, s.onset, was = append(s.score, x.Score), append(s.onset, rise), x.Alarm
			return nil
		})
		if err != nil {
			return nil, err
		}
		if err := s.weigh(labels[nabName(f)], rows); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// weigh gives each row its worth: in a window 1 at the left edge falling to 0 at the right one, after it down to -1, which it also is
// before the first. The first 15 %, at most 750 rows, are not scored.
func (s *nabStream) weigh(windows [][2]string, rows map[string]int) error {
	s.windows, s.from = len(windows), min(len(s.score)*15/100, 750)
	at, end, width := 0, -1, 0.0
	var first, last int
	for i := range s.score {
		if at < len(windows) && (i == 0 || i > end) {
			a, okA := rows[strings.TrimSuffix(windows[at][0], ".000000")]
			b, okB := rows[strings.TrimSuffix(windows[at][1], ".000000")]
			if !okA || !okB {
				return fmt.Errorf("window %v is not in the data", windows[at])
			}
			first, last = a, b
		}
		w, g := -1, -1.0
		switch {
		case at < len(windows) && i >= first && i <= last:
			n := float64(last - first + 1)
			w, g = at, sigmoid(-float64(last-i+1)/n)/sigmoid(-1)
			if i == last {
				at, end, width = at+1, i, n
			}
		case end >= 0:
			g = sigmoid(float64(i-end) / (width - 1))
		}
		s.window, s.gain = append(s.window, w), append(s.gain, g)
	}
	return nil
}

// sigmoid is the benchmark's: 1 long before y = 0, -1 long after.
func sigmoid(y float64) float64 {
	if y > 3 {
		return -1
	}
	return 2/(1+math.Exp(5*y)) - 1
}
