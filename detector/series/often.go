package series

import "math"

// often remembers the strongest evidence of blocks of samples, so that an asked rate of onsets becomes a threshold: a conformal
// quantile within what was seen, an exponential tail (extreme-value index 0) beyond the 0.9 quantile. Old blocks fade.
type often struct {
	count  [oftenBins]float32 // blocks by their strongest evidence
	blocks float32
	most   float32 // nats, of the running block
	taken  uint32  // samples of it
}

const (
	oftenBins   = 64
	oftenEach   = 2    // bins of a nat
	oftenBlock  = 50   // samples
	oftenLeast  = 3    // blocks before they say anything at the shipped rate
	oftenShare  = 0.1  // of blocks from which on the tail is in force
	oftenExcess = 3.0  // nats, mean excess before it is known …
	oftenWeight = 0.8  // … and its weight in blocks of the tail
	oftenClip   = 5    // mean excesses that one block may teach
	oftenNone   = 1e-9 // nats: a threshold that any evidence passes
)

// take adds a sample's evidence and says whether a block is over.
func (o *often) take(nats float64) bool {
	o.most = max(o.most, float32(nats))
	if o.taken++; o.taken < oftenBlock {
		return false
	}
	o.count[int(clampTo(oftenEach*float64(o.most), 0, oftenBins-1))]++
	o.blocks++
	o.taken, o.most = 0, 0
	return true
}

func (o *often) fade(by float32) {
	o.blocks *= by
	for i := range o.count {
		o.count[i] *= by
	}
}

// reach is the evidence that a share of the blocks reaches; share is above 0.
func (o *often) reach(share float64) float64 {
	if !(o.blocks > 0) {
		return oftenBins // more than there ever is
	}
	total := float64(o.blocks) + 1 // conformal: the block to come is one of them
	tail := max(oftenShare, 1/total)
	want := max(share, tail)*total - 1
	i, above, in := oftenBins-1, 0.0, 0.0
	for ; i > 0; i-- {
		if in = float64(o.count[i]); in > 0 && above+in > want {
			break
		}
		above += in
	}
	if i == 0 {
		return oftenNone
	}
	part := clampTo((want-above)/in, 0, 1)
	from := (float64(i+1) - part) / oftenEach
	if share >= tail {
		return from
	}
	b, n := oftenExcess, oftenWeight
	for range 3 { // the clip is in mean excesses
		sum := oftenWeight * oftenExcess
		n = oftenWeight
		for j := i; j < oftenBins; j++ {
			k := float64(o.count[j])
			if j == i {
				k *= part
			}
			sum += k * clampTo((float64(j)+0.5)/oftenEach-from, 0, oftenClip*b)
			n += k
		}
		b = sum / n
	}
	// The mean of few excesses is not known: the predictive tail of an exponential law, which tends to b·ln(tail/share).
	m := n + 1
	return from + b*m*(math.Pow(tail/share, 1/m)-1)
}
