package series

import "math"

// rarity says how often a magnitude was reached before: a histogram in quarter octaves from 2^-4 to 2^12, which serves heavy
// tails and light ones alike. Beyond the largest seen it goes on as a Pareto tail.
type rarity struct {
	count [rareBins]float32
	n     float32
	most  float32 // largest seen, fading
}

const (
	rareBins   = 64
	rareOctave = 4      // bins of a factor of two
	rareLow    = -4     // log2 of the least magnitude told apart
	rareTail   = 0.4    // tail index beyond the largest seen: 1/0.4 nats for each e-fold
	rareMost   = 20     // nats
	rareUsual  = 3.0    // nats that are no evidence: one sample in twenty
	rareOff    = 5.0    // nats of a distance from a learnt period that are none: a run that is early or late once in a while
	rareMemory = 40_000 // samples, when all counts are halved
	rareFade   = 1 - 1.0/87_000
)

// take gives the surprise of a magnitude, and learns it.
func (r *rarity) take(x float64) (nats float64) {
	at := rareAt(x)
	nats = r.surprise(x, at)
	r.add(x, at)
	return nats
}

// nats is the surprise of a magnitude that is not learnt, or not yet.
func (r *rarity) nats(x float64) float64 { return r.surprise(x, rareAt(x)) }

func (r *rarity) learn(x float64) { r.add(x, rareAt(x)) }

// rareAt is the place of a magnitude in bins.
func rareAt(x float64) float64 {
	if !(x > 1.0/16) {
		return 0
	}
	return clampTo((math.Log2(x)-rareLow)*rareOctave, 0, rareBins)
}

// surprise is -ln of the share of earlier magnitudes that reached x.
func (r *rarity) surprise(x, at float64) (nats float64) {
	bin := min(int(at), rareBins-1)
	n, most := float64(r.n), float64(r.most)
	switch {
	case !(n > 0):
	case x > most && most > 0:
		nats = math.Log(n+1) + math.Log(x/most)/rareTail
	default:
		above := float64(r.count[bin]) * clampTo(float64(bin+1)-at, 0, 1)
		for _, k := range r.count[bin+1:] {
			above += float64(k)
		}
		nats = math.Log((n + 1) / (above + 1))
	}
	if !(nats > 0) {
		return 0
	}
	return min(nats, rareMost)
}

func (r *rarity) add(x, at float64) {
	r.count[min(int(at), rareBins-1)]++
	if r.n++; r.n >= rareMemory {
		r.n /= 2
		for i := range r.count {
			r.count[i] /= 2
		}
	}
	r.most = float32(max(float64(r.most)*rareFade, min(x, math.MaxFloat32)))
}
