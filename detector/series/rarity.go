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
	rareMemory = 40_000 // samples, when all counts are halved
	rareFade   = 1 - 1.0/87_000
)

// take gives the surprise of a magnitude, -ln of the share of earlier ones that reached it, and learns it.
func (r *rarity) take(x float64) (nats float64) {
	if !(x >= 0) {
		x = 0
	}
	at := (math.Log2(max(x, 1.0/16)) - rareLow) * rareOctave
	bin := int(clampTo(at, 0, rareBins-1))
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
	r.count[bin]++
	if r.n++; r.n >= rareMemory {
		r.n /= 2
		for i := range r.count {
			r.count[i] /= 2
		}
	}
	r.most = float32(max(most*rareFade, min(x, math.MaxFloat32)))
	if !(nats > 0) {
		return 0
	}
	return min(nats, rareMost)
}
