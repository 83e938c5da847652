package series

import (
	"fmt"
	"math"
)

// PromQL gives an expression that fires on much the same: the mean of the evidence's window against the middle of the baseline's.
// It needs the threshold that the engine had then as a constant, which is the difference between the two.
func (f *Finding) PromQL(metric string) string {
	switch f.What {
	case Stall:
		return fmt.Sprintf("%s > %.3g * quantile_over_time(0.5, %s[1m] offset 10s)", metric, stallRatio, metric)
	case Flatline:
		return fmt.Sprintf("changes(%s[%gs]) == 0", metric, flatSeconds)
	}
	window, op, limit := fastSeconds, ">", f.Upper
	if f.What == Drift {
		window = slowSeconds
	}
	if f.Value < f.Expected {
		op, limit = "<", f.Lower
	}
	if !(math.Abs(f.Expected) > 0) || math.IsNaN(limit) {
		return fmt.Sprintf("avg_over_time(%s[%gs]) %s %.6g", metric, window, op, limit)
	}
	return fmt.Sprintf("avg_over_time(%s[%gs]) %s %.4g * quantile_over_time(0.5, %s[%gs] offset %gs)", metric, window, op, limit/f.Expected, metric, baseSeconds, window)
}
