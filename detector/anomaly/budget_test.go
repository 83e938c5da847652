package anomaly

import (
	"math"
	"testing"

	"github.com/pitcrew/pitcrew/detector/series"
)

const (
	incidentsPerGPUDay = 1e-4 // one in 10,000 GPU-days
	// tailDecades is ln(0.1/p) for the longest block of the tail model at the shipped rate, the least that a threshold lies above the
	// 0.9 quantile of block maxima in mean excesses: 8 samples at 1 Hz, p = 0.05/2·8/3600.
	tailDecades = 7.5
)

// chance is how many incidents a day all clauses make of independent false onsets of one GPU and its rank, at the asked rate.
func chance(ps []pattern, asked float64) (all float64, each map[string]float64) {
	n := map[Family]float64{} // series that can be a witness by statistics
	for _, s := range Catalogue {
		if s.Name != "" && !s.Info && s.Certain == 0 {
			n[s.Family]++
		}
	}
	each = map[string]float64{}
	for _, p := range ps {
		sum := 0.0
		for _, c := range p.clauses {
			w := c.window.Hours()
			if c.families > 0 { // the elementary symmetric polynomial: ways to take one series of each of k families
				ways := make([]float64, c.families+1)
				ways[0] = 1
				for _, x := range n {
					for k := c.families; k > 0; k-- {
						ways[k] += ways[k-1] * x
					}
				}
				k := float64(c.families)
				sum += k * ways[c.families] * math.Pow(asked, k) * math.Pow(w, k-1)
				continue
			}
			k, rate := 0, 1.0
			certain := false
			for _, x := range c.needs {
				if certain = certain || x.certain; x.certain {
					continue
				}
				k++
				rate *= n[x.family] * asked
				if x.z > 1 {
					rate *= math.Exp(-tailDecades * (x.z - 1))
				}
			}
			if !certain { // a certain witness is there for a reason, however often
				sum += float64(k) * rate * math.Pow(w, float64(k-1))
			}
		}
		each[p.Name] = 24 * sum
		all += 24 * sum
	}
	return all, each
}

func TestChanceMakesFewerIncidentsThanTheBudgetAtTheShippedRate(t *testing.T) {
	all, each := chance(patterns, series.AskedShipped)
	t.Logf("incidents per GPU-day by chance: %.2g, %v", all, each)
	if all <= 0 || all > incidentsPerGPUDay/2 {
		t.Errorf("%.2g incidents per GPU-day by chance; the budget is %g and dependence must have room", all, incidentsPerGPUDay)
	}
	if _, loose := chance([]pattern{{Name: "three", clauses: []clause{{families: 3, window: nearWindow}}}}, series.AskedShipped); loose["three"] < incidentsPerGPUDay {
		t.Errorf("three families would make only %.2g: then why four?", loose["three"])
	}
}

func TestSignalsOfAGpuAndItsRankAreAsManyAsTheBudgetSays(t *testing.T) {
	n := 0
	for _, s := range Catalogue {
		if s.Name != "" && !s.Info && s.Certain == 0 {
			n++
		}
	}
	if n != 21 {
		t.Errorf("%d series that can be witnesses; docs/detection-formulas.md speaks of 21", n)
	}
}
