package hook

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Resource is one thing that a pod can make the agent spend. Its text is the value of the attribute pitcrew.budget.
type Resource string

// The resources that a pod has a budget of.
const (
	Connections Resource = "connections" // sessions that are opened
	Messages    Resource = "messages"    // messages that are decoded
	Bytes       Resource = "bytes"       // bytes that are read from sockets
	FileEvents  Resource = "file_events" // names made in the pod's directory
	FileNames   Resource = "file_names"  // names in the pod's directory at one listing
	Rings       Resource = "rings"       // ring files that are opened
	Ranks       Resource = "ranks"       // local ranks that are followed
	Records     Resource = "records"     // steps that are read from rings
	Points      Resource = "points"      // metric points
	KeptText    Resource = "kept_text"   // bytes of text that are kept
	Events      Resource = "events"      // lifecycle events that wait for a subscriber
	Memory      Resource = "memory"      // a pod is shed because the agent is short of memory
)

// Rate is a token bucket: PerSecond tokens flow in, and at most Burst are saved up.
type Rate struct {
	PerSecond float64 `mapstructure:"per_second"`
	Burst     float64 `mapstructure:"burst"`
}

// Budget is what one pod may make the agent spend. A zero Rate or number stands for the default. Budgets of different pods are
// independent: what one pod spends, no other pod lacks.
type Budget struct {
	Connections Rate `mapstructure:"connections"`
	Messages    Rate `mapstructure:"messages"`
	Bytes       Rate `mapstructure:"bytes"`
	FileEvents  Rate `mapstructure:"file_events"`
	Rings       Rate `mapstructure:"rings"`
	Records     Rate `mapstructure:"records"`
	Points      Rate `mapstructure:"points"`
	// FileNames is how many names of a pod's directory are read at once. Beyond it, the names of ranks are looked up one by one.
	FileNames int `mapstructure:"file_names"`
	// KeptTextBytes bounds the text of a pod that is kept: of hellos, errors and process groups.
	KeptTextBytes int `mapstructure:"kept_text_bytes"`
	// LineBufferBytes bounds the messages of a pod that have begun and not ended.
	LineBufferBytes int `mapstructure:"line_buffer_bytes"`
	// Penalty is how long after its last excess a pod is still over budget.
	Penalty time.Duration `mapstructure:"penalty"`
}

// DefaultBudget suits pods of up to 16 ranks at 20 steps a second, and of 56 ranks at 10. docs/isolation.md explains each value.
func DefaultBudget() Budget {
	return Budget{
		Connections: Rate{2, 96}, Messages: Rate{12, 96}, Bytes: Rate{16 << 10, 64 << 10},
		FileEvents: Rate{20, 256}, Rings: Rate{0.2, 128}, Records: Rate{1000, 8000}, Points: Rate{16000, 64000},
		FileNames: 1024, KeptTextBytes: 64 << 10, LineBufferBytes: 64 << 10, Penalty: time.Minute,
	}
}

// rates are the budgets that are token buckets.
func (b *Budget) rates() map[Resource]*Rate {
	return map[Resource]*Rate{
		Connections: &b.Connections, Messages: &b.Messages, Bytes: &b.Bytes, FileEvents: &b.FileEvents, Rings: &b.Rings, Records: &b.Records, Points: &b.Points,
	}
}

// bounds are the budgets that are sizes.
func (b *Budget) bounds() map[string]*int {
	return map[string]*int{"file_names": &b.FileNames, "kept_text_bytes": &b.KeptTextBytes, "line_buffer_bytes": &b.LineBufferBytes}
}

// WithDefaults is the budget with a default in place of each zero.
func (b Budget) WithDefaults() Budget {
	d := DefaultBudget()
	rates := d.rates()
	for name, r := range b.rates() {
		if *r == (Rate{}) {
			*r = *rates[name]
		}
	}
	bounds := d.bounds()
	for name, n := range b.bounds() {
		if *n == 0 {
			*n = *bounds[name]
		}
	}
	if b.Penalty == 0 {
		b.Penalty = d.Penalty
	}
	return b
}

// Validate reports every setting that would leave a pod without service.
func (b Budget) Validate() error {
	var errs []error
	for name, r := range b.rates() {
		if *r != (Rate{}) && (r.PerSecond <= 0 || r.Burst < 1) {
			errs = append(errs, fmt.Errorf("budget: %s: per_second must be above 0 and burst at least 1, got %v and %v", name, r.PerSecond, r.Burst))
		}
	}
	for name, n := range b.bounds() {
		if *n < 0 {
			errs = append(errs, fmt.Errorf("budget: %s must not be negative, got %d", name, *n))
		}
	}
	if b.LineBufferBytes != 0 && b.LineBufferBytes < MaxLine {
		errs = append(errs, fmt.Errorf("budget: line_buffer_bytes must be at least %d, the longest message of a rank, got %d", MaxLine, b.LineBufferBytes))
	}
	if b.Penalty < 0 {
		errs = append(errs, fmt.Errorf("budget: penalty must not be negative, got %v", b.Penalty))
	}
	return errors.Join(errs...)
}

// bucket is the state of a Rate.
type bucket struct {
	tokens float64
	at     time.Time
}

func (b *bucket) fill(r Rate, now time.Time) {
	if b.at.IsZero() {
		b.tokens = r.Burst
	} else if d := now.Sub(b.at); d > 0 {
		b.tokens = min(b.tokens+d.Seconds()*r.PerSecond, r.Burst)
	}
	b.at = now
}

// Excess is what a pod did beyond one budget.
type Excess struct {
	Resource Resource
	Total    uint64 // since the pod was found
}

// account is the spending of one pod. It is safe for concurrent use.
type account struct {
	budget Budget
	rates  map[Resource]*Rate // of budget
	now    func() time.Time
	// report is called at the first excess of a resource, and then at most once in each reportEvery.
	report func(Excess)

	mu       sync.Mutex
	buckets  map[Resource]*bucket
	excess   map[Resource]uint64
	reported map[Resource]time.Time
	last     time.Time // of any excess
	text     int       // bytes kept
	lines    int       // bytes of messages that have not ended
}

// reportEvery is the time between two reports of one pod and one budget.
const reportEvery = time.Minute

func newAccount(b Budget, report func(Excess)) *account {
	a := &account{
		budget: b.WithDefaults(), now: time.Now, report: report,
		buckets: map[Resource]*bucket{}, excess: map[Resource]uint64{}, reported: map[Resource]time.Time{},
	}
	a.rates = a.budget.rates()
	return a
}

// filled is a bucket as of now. The lock is held.
func (a *account) filled(r Resource) *bucket {
	b := a.buckets[r]
	if b == nil {
		b = &bucket{}
		a.buckets[r] = b
	}
	b.fill(*a.rates[r], a.now())
	return b
}

// dearer is how many times as much a pod pays that was over a budget lately, for what is costly to all who read it.
const dearer = 4

// price is what one of a resource costs now. The lock is held.
func (a *account) price(r Resource, now time.Time) int {
	if (r == Connections || r == Messages || r == Bytes) && !a.last.IsZero() && now.Sub(a.last) < a.budget.Penalty {
		return dearer
	}
	return 1
}

// take spends what n cost, or nothing and reports the excess.
func (a *account) take(r Resource, n int) bool {
	a.mu.Lock()
	b := a.filled(r)
	cost := float64(n * a.price(r, b.at))
	enough := b.tokens >= cost
	if enough {
		b.tokens -= cost
	}
	a.mu.Unlock()
	if !enough {
		a.exceed(r, n)
	}
	return enough
}

// grant spends up to n tokens and returns how many. What is missing is excess.
func (a *account) grant(r Resource, n int) int {
	a.mu.Lock()
	b := a.filled(r)
	got := max(min(n, int(b.tokens)), 0)
	b.tokens -= float64(got)
	a.mu.Unlock()
	if got < n {
		a.exceed(r, n-got)
	}
	return got
}

// after is how long it takes until n tokens are there; 0 means now. It spends nothing.
func (a *account) after(r Resource, n int) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.filled(r)
	missing := float64(n*a.price(r, b.at)) - b.tokens
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing / a.rates[r].PerSecond * float64(time.Second))
}

// charge spends n tokens that have been used already, and returns how long the pod is in debt.
func (a *account) charge(r Resource, n int) time.Duration {
	a.mu.Lock()
	b := a.filled(r)
	b.tokens -= float64(n * a.price(r, b.at))
	debt := -b.tokens
	a.mu.Unlock()
	if debt <= 0 {
		return 0
	}
	a.exceed(r, n)
	return time.Duration(debt / a.rates[r].PerSecond * float64(time.Second))
}

// exceed counts n beyond a budget.
func (a *account) exceed(r Resource, n int) {
	now := a.now()
	a.mu.Lock()
	a.excess[r] += uint64(n)
	a.last = now
	e := Excess{r, a.excess[r]}
	due := a.reported[r].IsZero() || now.Sub(a.reported[r]) >= reportEvery
	if due {
		a.reported[r] = now
	}
	a.mu.Unlock()
	if due && a.report != nil {
		a.report(e)
	}
}

// over says whether the pod was over a budget within the penalty.
func (a *account) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.last.IsZero() && a.now().Sub(a.last) < a.budget.Penalty
}

// excesses is what the pod did beyond its budgets so far.
func (a *account) excesses() []Excess {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]Excess, 0, len(a.excess))
	for r, n := range a.excess {
		out = append(out, Excess{r, n})
	}
	return out
}

// keep replaces old bytes of kept text with new ones. It reports an excess and keeps the old if the new do not fit.
func (a *account) keep(old, new int) bool {
	a.mu.Lock()
	fits := new <= old || a.text-old+new <= a.budget.KeptTextBytes
	if fits {
		a.text += new - old
	}
	a.mu.Unlock()
	if !fits {
		a.exceed(KeptText, new-old)
	}
	return fits
}

// lessRoom is by what the line buffers of a pod shrink that was over a budget lately.
const lessRoom = 4

// hold takes room for n more bytes of messages that have not ended; free gives it back. An answer that was asked for has all the room
// also in a pod that was over a budget.
func (a *account) hold(n int, answer bool) bool {
	a.mu.Lock()
	room := a.budget.LineBufferBytes
	if !answer && !a.last.IsZero() && a.now().Sub(a.last) < a.budget.Penalty {
		room /= lessRoom
	}
	fits := a.lines+n <= room
	if fits {
		a.lines += n
	}
	a.mu.Unlock()
	if !fits {
		a.exceed(Bytes, n)
	}
	return fits
}

func (a *account) free(n int) {
	a.mu.Lock()
	a.lines -= n
	a.mu.Unlock()
}
