package peers

import (
	"math"
	"math/rand/v2"
	"testing"
)

// rounds gives a group of eight so many rounds with member 5 so much slower, and what was found of it.
func rounds(g *Group, rng *rand.Rand, t *int64, n int, factor float64) (found []Finding) {
	v := make([]float64, 8)
	for range n {
		for i := range v {
			v[i] = 0.2 * math.Exp(0.01*rng.NormFloat64())
		}
		v[5] *= factor
		*t += 200e6
		found = append(found, g.Round(*t, v)...)
	}
	return found
}

func TestAPlaceThatIsAcceptedIsTheMembersOwnAndWorseThanItIsAFindingAgain(t *testing.T) {
	for name, c := range map[string]struct {
		before, factor float64
		from           int
		what           What
	}{
		"a straggler":                 {1, 1.5, 100, Slow},
		"one three times as slow":     {1, 3, 100, Slow},
		"slow from its first round":   {1.6, 1.6, 30, Imbalance},
		"three times from the first":  {3, 3, 30, Imbalance},
		"a straggler in the start":    {1, 1.5, 20, Slow},
		"one with a place of its own": {0.85, 1.3, 100, Slow},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := New(8)
			if err != nil {
				t.Fatal(err)
			}
			rng, now := rand.New(rand.NewPCG(1, 7)), int64(0)
			found := rounds(g, rng, &now, c.from, c.before)
			if found = append(found, rounds(g, rng, &now, 40, c.factor)...); len(found) != 1 || found[0].What != c.what || found[0].Member != 5 {
				t.Fatalf("found %+v", found)
			}
			g.Accept(5, math.Log(c.factor))
			if g.open != 0 {
				t.Errorf("%d are open", g.open)
			}
			if found = rounds(g, rng, &now, 300, c.factor); len(found) != 0 {
				t.Errorf("at the accepted place: %+v", found)
			}
			if found = rounds(g, rng, &now, 40, 1.4*c.factor); len(found) != 1 || found[0].Ended != 0 || found[0].Ratio < 1.2 || found[0].Ratio > 1.5 {
				t.Errorf("beyond it: %+v", found)
			}
		})
	}
	g, _ := New(8)
	g.Accept(8, 1)
	g.Accept(-1, 1)
}

func TestALevelThatIsAcceptedIsTheRolesOwn(t *testing.T) {
	g, err := New(8)
	if err != nil {
		t.Fatal(err)
	}
	rng, v := rand.New(rand.NewPCG(1, 7)), make([]float64, 8)
	now := int64(0)
	run := func(n int, level float64) (found []Finding) {
		for range n {
			for i := range v {
				v[i] = level * math.Exp(0.01*rng.NormFloat64())
			}
			now += 200e6
			found = append(found, g.Round(now, v)...)
		}
		return found
	}
	run(100, 0.2)
	if found := run(5, 0.3); len(found) != 1 || found[0].What != Job {
		t.Fatalf("found %+v", found)
	}
	g.AcceptLevel()
	if found := run(100, 0.3); len(found) != 0 {
		t.Errorf("at the accepted level: %+v", found)
	}
	if found := run(5, 0.45); len(found) != 1 || found[0].Ended != 0 {
		t.Errorf("beyond it: %+v", found)
	}
}
