package kernel

import (
	"hash/maphash"
	"math"
	"slices"
	"time"
)

// Limits of a Folder. The wait of a line that goes on doubles from firstWait to lastWait. After idle of silence it is a new line again.
const (
	firstWait = time.Second
	lastWait  = 32 * time.Second
	idle      = 2 * time.Minute

	promptReports = 8 // of a line that alternates with others, before it has to wait
	maxDevices    = 256
	maxFolds      = 64 // of one device
	maxVariants   = 16 // of one code of a device; further ones are told apart by the driver's word alone

	maxDetail = 512
	maxLine   = 4096
)

// Stamp is where and when a line was written.
type Stamp struct {
	// At is time since boot, or on any clock that does not go back.
	At  time.Duration
	Seq uint64
	// History marks a line that is no news: it was published before, or is older than what counts as news. Published distinguishes the two.
	// EarlierBoot marks a line of a boot that is over.
	History, Published, EarlierBoot bool
}

func (s Stamp) age() Stamp {
	return Stamp{History: s.History, Published: s.Published, EarlierBoot: s.EarlierBoot}
}

// Report is a line, and how many lines alike it stands for. It shares no memory with the line.
type Report struct {
	Event Event
	Stamp Stamp // of the first of these lines
	// Count is how many lines this report stands for. No line is in two reports. It is 0 if only Detail is new.
	Count int
	// Detail holds the lines that belong to the event (SXid Severity and Data).
	Detail string
	// Line is the first of these lines.
	Line string
}

// Folder counts lines that say the same, so that a storm of lines is a handful of reports. It judges nothing:
//   - A line that says something new is reported within Add, always.
//   - A repeat is reported within Add if the line was quiet, or if other lines of its device came in between and it did so only a few times.
//   - Any other repeat is counted, and reported by a later Sweep.
//   - Before a line of a device is reported, so is what was counted of the device. So the last line of a device is also its last report.
//
// It is driven by the times on the lines and by Sweep; it has no clock.
type Folder struct {
	report  func(*Report)
	devices map[deviceKey]*device
	next    time.Duration // the first time at which Sweep has work; 0 for none
	seed    maphash.Seed
}

// NewFolder returns a folder that calls report for each report as it comes up. The pointer is good for the call only.
func NewFolder(report func(*Report)) *Folder {
	return &Folder{report: report, devices: map[deviceKey]*device{}, seed: maphash.MakeSeed()}
}

type deviceKey struct {
	at    Address
	class Kind // SXid, AER and MLX5 lines have addresses of their own devices
}

type device struct {
	folds    []*fold
	reported *fold // the last one
	last     time.Duration
}

type foldKey struct {
	kind    Kind
	code    int
	gi, ci  int
	variant uint64 // of the unit and registers, of the recovery action, of the case
}

// fold is what is known of lines that say the same.
type fold struct {
	key      foldKey
	age      Stamp // history and news are not counted together
	out      Report
	last     time.Duration // of its last line
	line     uint64        // number of its last line
	reported time.Duration
	wait     time.Duration
	prompt   int
}

func (f *fold) backOff() { f.wait = min(2*f.wait, lastWait) }

func (f *fold) pending() bool { return f.out.Count > 0 || f.out.Detail != "" }

func deviceOf(e *Event) deviceKey {
	switch e.Kind {
	case SXid, AER, MLX5:
		return deviceKey{e.PCI, e.Kind}
	}
	return deviceKey{e.PCI, Xid}
}

// keyOf identifies what a line says, apart from the process that it names.
func (f *Folder) keyOf(d *device, e *Event) foldKey {
	k := foldKey{kind: e.Kind, code: e.Code, gi: e.GI, ci: e.CI}
	switch {
	case e.Unit != nil:
		coarse := k
		coarse.variant = uint64(e.Word)<<1 | 1
		k.variant = maphash.Bytes(f.seed, e.Unit) ^ (uint64(e.Reg[0])<<32|uint64(e.Reg[1]))*0x9e3779b97f4a7c15 ^ uint64(e.Word)<<8 ^ uint64(e.Regs)
		if d.variants(k) >= maxVariants {
			return coarse
		}
	case e.Action != nil || e.ActionValue >= 0:
		k.variant = maphash.Bytes(f.seed, e.Action) + uint64(e.ActionValue)
	case e.Case != "":
		k.variant = maphash.String(f.seed, e.Case)
	default:
		k.variant = uint64(e.Word) // of one SXid, one link's error is fatal and another's is not
	}
	return k
}

// variants counts the folds of a code other than the one of the key; it is 0 if the key has a fold.
func (d *device) variants(k foldKey) (n int) {
	for _, f := range d.folds {
		if f.key == k {
			return 0
		}
		if f.key.kind == k.kind && f.key.code == k.code {
			n++
		}
	}
	return n
}

func (d *device) find(k foldKey) *fold {
	for _, f := range d.folds {
		if f.key == k {
			return f
		}
	}
	return nil
}

// Next returns the time at which Sweep must be called, if any.
func (f *Folder) Next() (at time.Duration, ok bool) { return f.next, f.next > 0 }

// Add takes an event.
func (f *Folder) Add(e *Event, at Stamp) {
	if f.next > 0 && at.At >= f.next {
		f.Sweep(at.At)
	}
	d := f.deviceAt(deviceOf(e), at.At)
	key := f.keyOf(d, e)
	x := d.find(key)
	if x != nil {
		quiet := at.At - x.last
		x.last, x.line = at.At, at.Seq
		switch {
		case quiet > idle || x.age != at.age():
			x.wait, x.prompt, x.age = firstWait, promptReports, at.age()
		case at.At-x.reported >= x.wait:
			x.backOff()
		case d.reported != x && x.prompt > 0:
			x.prompt--
		default:
			f.count(x, e, at)
			return
		}
	} else {
		x = f.open(d, &fold{key: key, age: at.age(), last: at.At, line: at.Seq, wait: firstWait, prompt: promptReports}, at.At)
	}
	f.flush(d, at.At) // what was counted came before it
	x.out = Report{Event: e.Clone(), Stamp: at, Count: 1, Line: Clip(e.Text)}
	f.send(d, x, at.At)
}

// count holds a repeat back.
func (f *Folder) count(x *fold, e *Event, at Stamp) {
	if x.out.Count == 0 {
		x.out = Report{Event: e.Clone(), Stamp: at, Line: Clip(e.Text), Detail: x.out.Detail}
	}
	x.out.Count++
	f.wake(x.reported + x.wait)
}

// AddDetail attaches a line that repeats an event's code. Without that event it is nothing.
func (f *Folder) AddDetail(e *Event, at Stamp) {
	d := f.devices[deviceOf(e)]
	if d == nil {
		return
	}
	var of *fold // the event's last line
	for _, x := range d.folds {
		if x.key.kind == e.Kind && x.key.code == e.Code && at.At-x.last <= idle && (of == nil || x.line >= of.line) {
			of = x
		}
	}
	if of == nil {
		return
	}
	if of.out.Count == 0 && of.out.Detail == "" {
		of.out = Report{Event: e.Clone(), Stamp: at, Line: Clip(e.Text)}
	}
	AppendDetail(&of.out.Detail, e.Text)
	f.wake(of.reported + of.wait)
}

// Sweep reports what was counted for long enough, and forgets what is quiet.
func (f *Folder) Sweep(now time.Duration) {
	f.next = 0
	for key, d := range f.devices {
		due := time.Duration(math.MaxInt64)
		for _, x := range d.folds {
			if x.pending() {
				due = min(due, x.reported+x.wait)
			}
		}
		switch {
		case now >= due:
			f.flush(d, now)
		case due < math.MaxInt64:
			f.wake(due)
		case now-d.last > idle:
			delete(f.devices, key)
		}
	}
}

// Flush reports all that was counted, and forgets it.
func (f *Folder) Flush() {
	for _, d := range f.devices {
		f.flush(d, d.last)
	}
	f.Forget()
}

// Forget drops all that was counted: the log that it came from is gone.
func (f *Folder) Forget() {
	clear(f.devices)
	f.next = 0
}

// Len is the number of devices that are remembered.
func (f *Folder) Len() int { return len(f.devices) }

// deviceAt returns a device, and makes room for one that is new.
func (f *Folder) deviceAt(key deviceKey, at time.Duration) *device {
	d := f.devices[key]
	if d == nil {
		if len(f.devices) >= maxDevices {
			oldest, last := deviceKey{}, time.Duration(math.MaxInt64)
			for k, o := range f.devices {
				if o.last < last {
					oldest, last = k, o.last
				}
			}
			f.flush(f.devices[oldest], at)
			delete(f.devices, oldest)
		}
		d = &device{}
		f.devices[key] = d
	}
	d.last = at
	return d
}

// open takes a fold up. Beyond maxFolds the one that was quiet for longest goes, after its report.
func (f *Folder) open(d *device, x *fold, at time.Duration) *fold {
	if len(d.folds) >= maxFolds {
		f.flush(d, at)
		oldest := 0
		for i, o := range d.folds {
			if o.line < d.folds[oldest].line {
				oldest = i
			}
		}
		d.folds = slices.Delete(d.folds, oldest, oldest+1)
	}
	d.folds = append(d.folds, x)
	return x
}

// flush reports what was counted of a device, in the order of the last lines.
func (f *Folder) flush(d *device, at time.Duration) {
	var pending []*fold
	for _, x := range d.folds {
		if x.pending() {
			pending = append(pending, x)
		}
	}
	slices.SortFunc(pending, func(a, b *fold) int { return int(a.line) - int(b.line) })
	for _, x := range pending {
		x.backOff()
		f.send(d, x, at)
	}
}

func (f *Folder) send(d *device, x *fold, at time.Duration) {
	x.reported, d.reported = at, x
	f.report(&x.out)
	x.out = Report{}
}

func (f *Folder) wake(at time.Duration) {
	if f.next == 0 || at < f.next {
		f.next = max(at, 1)
	}
}
