package gpuprocessreceiver

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/receivers/process"
)

const (
	lookMost      = time.Minute // between looks into one process
	driverMost    = time.Minute // between looks at which GPUs there are
	maxProcesses  = 1 << 16     // that are remembered
	maxUsing      = 1024        // processes that have a GPU open
	unreadableSay = time.Hour
)

// known is a process that was looked into.
type known struct {
	pid   int
	facts process.Facts
	next  time.Time     // when it is looked into again
	wait  time.Duration // doubles from one interval to lookMost
	seen  uint64        // of the scan that saw it last
	in    process.Container
	uses  []int // device numbers
}

// use is a process and a GPU that it has open.
type use struct {
	pid   int
	facts process.Facts
	in    process.Container
	names process.Names
	minor int
	gpu   process.GPU
	ended bool
}

// scanner remembers processes between looks. Its methods are called by one goroutine.
type scanner struct {
	within   *process.Within
	fs       process.FS
	interval time.Duration
	maxLooks int
	logs     string // folder of container logs

	gpus      map[int]process.GPU
	gpusAt    time.Time
	processes map[int]*known
	scans     uint64
	names     map[string]process.Names
	namesAt   time.Time

	looks, unreadable int64
}

// scan looks at new processes and at those whose time has come. What it returns is what every process that was looked into has open now, and
// what has ended.
func (s *scanner) scan(now time.Time) ([]use, error) {
	if err := s.driver(now); err != nil || len(s.gpus) == 0 {
		return nil, err
	}
	pids, err := s.fs.PIDs()
	if err != nil {
		return nil, err
	}
	s.scans++
	var due []*known
	for _, pid := range pids {
		p := s.processes[pid]
		if p == nil {
			if len(s.processes) >= maxProcesses {
				continue
			}
			p = &known{pid: pid, next: now}
			s.processes[pid] = p
		}
		p.seen = s.scans
		if !p.next.After(now) {
			due = append(due, p)
		}
	}
	var out []use
	for pid, p := range s.processes {
		if p.seen != s.scans {
			out = append(out, s.ended(p, p.uses)...)
			delete(s.processes, pid)
		}
	}
	if len(due) > s.maxLooks { // who has waited longest; the others stay due
		slices.SortFunc(due, func(a, b *known) int { return cmp.Or(a.next.Compare(b.next), cmp.Compare(b.pid, a.pid)) })
		due = due[:s.maxLooks]
	}
	using := 0
	for _, p := range due {
		if using < maxUsing {
			found := s.look(p, now)
			using += len(found)
			out = append(out, found...)
		}
	}
	return out, nil
}

// driver asks which GPUs there are, and forgets all processes where there is no driver.
func (s *scanner) driver(now time.Time) error {
	if !s.gpusAt.IsZero() && now.Sub(s.gpusAt) < driverMost {
		return nil
	}
	gpus, err := s.fs.GPUs()
	if err != nil {
		return err
	}
	s.gpus, s.gpusAt = gpus, now
	return nil
}

// look reads what a process has open.
func (s *scanner) look(p *known, now time.Time) []use {
	s.looks++
	p.wait = min(max(2*p.wait, s.interval), lookMost)
	p.next = now.Add(p.wait)
	open, facts, err := s.read(p.pid, len(p.uses) > 0)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.unreadable++
		}
		return nil // that it is gone, the next list of processes says
	}
	if len(open) == 0 && len(p.uses) == 0 {
		return nil
	}
	var out []use
	if len(p.uses) > 0 && facts.Start != p.facts.Start { // the number is another process's now
		out = s.ended(p, p.uses)
		p.uses, p.in = nil, process.Container{}
	}
	out = append(out, s.ended(p, slices.DeleteFunc(slices.Clone(p.uses), func(m int) bool { return slices.Contains(open, m) }))...)
	p.facts, p.uses = facts, open
	if p.in.ID == "" {
		p.in, _ = s.fs.ContainerOf(p.pid)
	}
	return append(out, s.usesOf(p, open, now)...)
}

// read looks at the open files and the command line of a process, where a look that hangs blocks nothing: a process on a dead mount
// can hold both. known is true if it had GPUs open before. The owner is its pod, by its control group, which never hangs.
func (s *scanner) read(pid int, known bool) ([]int, process.Facts, error) {
	in, _ := s.fs.ContainerOf(pid)
	type found struct {
		open  []int
		facts process.Facts
		err   error
	}
	got := make(chan found, 1)
	err := s.within.Do(in.PodUID, func() {
		var f found
		if f.open, f.err = s.fs.Uses(pid); f.err == nil && (known || len(f.open) > 0) {
			f.facts, f.err = s.fs.Facts(pid)
		}
		got <- f
	})
	if err != nil {
		return nil, process.Facts{}, err
	}
	f := <-got
	return f.open, f.facts, f.err
}

func (s *scanner) usesOf(p *known, open []int, now time.Time) (out []use) {
	for _, minor := range open {
		if gpu, there := s.gpus[minor]; there {
			out = append(out, use{pid: p.pid, facts: p.facts, in: p.in, names: s.nameOf(p.in.ID, now), minor: minor, gpu: gpu})
		}
	}
	return out
}

func (s *scanner) ended(p *known, minors []int) (out []use) {
	for _, minor := range minors {
		if gpu, there := s.gpus[minor]; there {
			out = append(out, use{pid: p.pid, facts: p.facts, in: p.in, minor: minor, gpu: gpu, ended: true})
		}
	}
	return out
}

// nameOf is who a container is; the folder is read anew for one that is not known.
func (s *scanner) nameOf(id string, now time.Time) process.Names {
	n, ok := s.names[id]
	if ok || id == "" || s.logs == "" || !s.namesAt.IsZero() && now.Sub(s.namesAt) < s.interval {
		return n
	}
	s.namesAt = now
	if names, err := process.NamesIn(s.logs); err == nil {
		s.names = names
	}
	return s.names[id]
}
