package peers

const (
	history = 32 // rounds that are remembered, a power of two
	windows = 4
)

// lengths of the windows over which the evidence of a member is summed: the short ones are for large faults, the long ones for
// small faults under much noise.
var lengths = [windows]int{3, 6, 12, 24}

// runs are the sums of each member's distances since it began, one row after each round. They may run over; what lies between two rows
// of one member never does. A member that is not heard in a round keeps its place by being turned on, so that rows are one behind the
// other for all.
type runs struct {
	rows [history][]int32
	at   uint // the newest
}

func newRuns(members int) (r runs) {
	for i := range r.rows {
		r.rows[i] = make([]int32, members)
	}
	return r
}

// back is the row of so many rounds ago.
func (r *runs) back(n int) []int32 { return r.rows[(r.at-uint(n))%history] }

// sum is that of a member's last l distances, or of all where there are fewer.
func (r *runs) sum(i, l int) fixed { return fixed(r.back(0)[i] - r.back(l)[i]) }

// mean over a window, in which what is not there yet counts as none.
func (r *runs) mean(i, k int) float64 { return r.sum(i, lengths[k]).float() / float64(lengths[k]) }

// distance of so many rounds ago, less than history-1.
func (r *runs) distance(i, ago int) float64 {
	return fixed(r.back(ago)[i] - r.back(ago + 1)[i]).float()
}

// begin lets a member begin.
func (r *runs) begin(i int) {
	for _, row := range r.rows {
		row[i] = 0
	}
}

// turn takes a member that is not heard past the newest row.
func (r *runs) turn(i int) {
	oldest := r.back(0)[i]
	for n := range history - 1 {
		r.back(n)[i] = r.back(n + 1)[i]
	}
	r.back(history - 1)[i] = oldest
}
