package hook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// FileChange is one thing that a Watcher saw. Changes may repeat; they say what to look at, not what is there.
type FileChange struct {
	Kind     ChangeKind
	PodUID   string
	Local    int      // of a rank's ring or socket
	Err      error    // of a Refused
	Resource Resource // of an Exceeded
	Count    int      // of an Exceeded
}

// ChangeKind is what happened.
type ChangeKind int

// The changes. A file that is replaced by rename appears again.
const (
	PodFound ChangeKind = iota
	RingAppeared
	SocketAppeared
	LauncherAppeared
	PodGone
	Refused  // something was left out, with the reason
	Exceeded // the pod made more names than its budget allows
)

// Limits bound what one node's pods can make an agent hold.
type Limits struct {
	Pods  int // pods with a pitcrew directory
	Ranks int // local ranks of one pod
	// NodeRanks bounds the ranks of all pods, but for the RanksGuaranteed that each pod may always have.
	NodeRanks, RanksGuaranteed int
	// Lives bounds how many processes one local rank may have had. A pod that replaces its ring without end cannot
	// make label sets without end.
	Lives int
}

// DefaultLimits suit nodes of up to 16 GPUs with room for many restarts.
func DefaultLimits() Limits {
	return Limits{Pods: 512, Ranks: 64, NodeRanks: 256, RanksGuaranteed: 8, Lives: 4096}
}

// readBatch bounds how many names of a directory are held at once.
const readBatch = 256

// Watcher finds pod directories below a kubelet root and what appears in them, by inotify. Each directory is first
// watched and then listed, so nothing that is made in between is missed, however fast the levels are made.
//
// The directory of a pod that makes names beyond its budget is not watched for a while. It is then looked at again, first after
// restFirst and, while the pod goes on, after up to restMost.
type Watcher struct {
	root   string
	limits Limits
	budget Budget
	emit   func(FileChange)
	now    func() time.Time

	notify *inotify
	// pods are the pods with a pitcrew directory.
	pods     map[string]*watched
	full     map[string]bool // who was refused, said once
	scanned  time.Time       // when everything was looked at for the last time
	overflow bool            // events were lost since
}

// watched is one pod's directory.
type watched struct {
	ranks  map[int]bool // local ranks that were seen
	bucket bucket
	rests  time.Time     // until when it is not watched; zero if it is
	rest   time.Duration // the last one
	rested time.Time     // when that ended
}

// Bounds of looking at a pod that exceeds its budget, and at everything after events were lost.
const (
	restFirst   = 5 * time.Second
	restMost    = time.Minute
	rescanEvery = 2 * time.Second
)

// NewWatcher makes a watcher of a kubelet root, which need not exist yet. emit is called from Run's goroutine.
func NewWatcher(root string, limits Limits, budget Budget, emit func(FileChange)) *Watcher {
	return &Watcher{
		root: filepath.Clean(root), limits: limits, budget: budget.WithDefaults(), emit: emit, now: time.Now,
		pods: map[string]*watched{}, full: map[string]bool{},
	}
}

// Run watches until ctx ends. Its error is that of inotify itself (usually a limit: fs.inotify.max_user_instances or _watches).
func (w *Watcher) Run(ctx context.Context) error {
	n, err := newInotify()
	if err != nil {
		return fmt.Errorf("watch %s: %w (raise fs.inotify.max_user_instances)", w.root, err)
	}
	defer n.close()
	defer context.AfterFunc(ctx, n.interrupt)()
	w.notify = n
	if err := w.scan(); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := w.wait(); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// wait takes what has happened, or ends a pod's rest.
func (w *Watcher) wait() error {
	deadline := w.due()
	if !deadline.IsZero() {
		deadline = time.Now().Add(deadline.Sub(w.now())) // the kernel knows no other clock
	}
	switch err := w.notify.read(deadline, w.event); {
	case errors.Is(err, errOverflow):
		w.overflow = true
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	}
	now := w.now()
	if w.overflow && now.Sub(w.scanned) >= rescanEvery {
		w.overflow = false
		if err := w.rescan(); err != nil { // the kernel dropped events: look at everything again
			return err
		}
	}
	for uid, p := range w.pods {
		if !p.rests.IsZero() && !p.rests.After(now) {
			p.rests, p.rested = time.Time{}, now
			if _, err := os.Lstat(PodDir(w.root, uid)); errors.Is(err, os.ErrNotExist) {
				w.gone(uid)
			}
			w.pod(uid)
		}
	}
	return nil
}

// due is when something is to be done though nothing happens; zero means never.
func (w *Watcher) due() (next time.Time) {
	if w.overflow {
		next = w.scanned.Add(rescanEvery)
	}
	for _, p := range w.pods {
		if !p.rests.IsZero() && (next.IsZero() || p.rests.Before(next)) {
			next = p.rests
		}
	}
	return next
}

func (w *Watcher) podsDir() string { return filepath.Join(w.root, "pods") }

// scan watches <root>/pods, or while it is not there its nearest ancestor that is.
func (w *Watcher) scan() error {
	for dir := w.podsDir(); ; dir = filepath.Dir(dir) {
		err := w.watch(dir)
		if err == nil {
			if dir == w.podsDir() {
				w.scanned = w.now()
				w.dropAncestors()
				_, err := w.list(dir, 0, w.pod)
				return err
			}
			// The next level may have been made just before the watch.
			if _, err := os.Stat(w.below(dir, w.podsDir())); err == nil {
				return w.scan()
			}
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if dir == filepath.Dir(dir) {
			return fmt.Errorf("watch %s: %w", w.root, err)
		}
	}
}

// dropAncestors takes away the watches that only waited for <root>/pods.
func (w *Watcher) dropAncestors() {
	for d := w.podsDir(); d != filepath.Dir(d); {
		d = filepath.Dir(d)
		w.notify.remove(d)
	}
	// The root tells when <root>/pods itself is made again.
	_ = w.notify.add(w.root, namesMask)
}

// below is the child of dir on the way to target.
func (w *Watcher) below(dir, target string) string {
	rest := strings.TrimPrefix(strings.TrimPrefix(target, dir), string(filepath.Separator))
	first, _, _ := strings.Cut(rest, string(filepath.Separator))
	return filepath.Join(dir, first)
}

// rescan looks at everything again after events were lost.
func (w *Watcher) rescan() error {
	for uid := range w.pods {
		if _, err := os.Lstat(PodDir(w.root, uid)); errors.Is(err, os.ErrNotExist) {
			w.gone(uid)
		}
	}
	return w.scan()
}

// pod looks at one pod's directory. What is wrong with one pod stops no other.
func (w *Watcher) pod(uid string) {
	if !ValidPodUID(uid) {
		return
	}
	if err := w.descend(uid); err != nil && !errors.Is(err, os.ErrNotExist) {
		w.refuse(uid, err)
	}
}

// descend goes down the levels of a pod's directory as far as they exist, and watches the deepest.
func (w *Watcher) descend(uid string) error {
	dir := filepath.Join(w.podsDir(), uid)
	for _, name := range podPath {
		if err := w.watch(dir); err != nil {
			return err
		}
		dir = filepath.Join(dir, name)
		fi, err := os.Lstat(dir)
		if errors.Is(err, os.ErrNotExist) {
			return nil // the watch of the level above tells when it is made
		}
		if err != nil {
			return err
		}
		if !fi.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
	}
	if _, known := w.pods[uid]; !known {
		if len(w.pods) >= w.limits.Pods {
			return fmt.Errorf("pod %s: more than %d training pods on this node; raise the limit", uid, w.limits.Pods)
		}
		w.pods[uid] = &watched{ranks: map[int]bool{}}
		w.emit(FileChange{Kind: PodFound, PodUID: uid})
	}
	if !w.pods[uid].rests.IsZero() {
		return nil
	}
	if err := w.watchFor(dir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		return err
	}
	// The levels between are of no more interest: <root>/pods tells the pod's end.
	for d := filepath.Dir(dir); d != w.podsDir(); d = filepath.Dir(d) {
		w.notify.remove(d)
	}
	more, err := w.list(dir, w.budget.FileNames, func(name string) { w.file(uid, name) })
	if more {
		w.emit(FileChange{Kind: Exceeded, PodUID: uid, Resource: FileNames, Count: 1})
		w.probe(uid, dir)
	}
	return err
}

// probe looks for the names of a pod's first ranks one by one, where there are too many names to read.
func (w *Watcher) probe(uid, dir string) {
	names := []string{LauncherSocket}
	for i := range w.limits.Ranks {
		names = append(names, RingName(i), SocketName(i))
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			w.file(uid, name)
		}
	}
}

// spend takes one new name from a pod's budget. If there is none left, the pod's directory is not watched for a while.
func (w *Watcher) spend(uid string) bool {
	p, now := w.pods[uid], w.now()
	p.bucket.fill(w.budget.FileEvents, now)
	if p.bucket.tokens >= 1 {
		p.bucket.tokens--
		return true
	}
	w.emit(FileChange{Kind: Exceeded, PodUID: uid, Resource: FileEvents, Count: 1})
	if now.Sub(p.rested) > restMost { // it was quiet for long
		p.rest = 0
	}
	p.rest = min(max(2*p.rest, restFirst), restMost)
	p.rests = now.Add(p.rest)
	w.notify.remove(PodDir(w.root, uid))
	return false
}

// file emits what a name in a pod's directory means.
func (w *Watcher) file(uid, name string) {
	kind, local := parseName(name)
	switch kind {
	case fileOther:
		return
	case fileLauncherSocket:
		w.emit(FileChange{Kind: LauncherAppeared, PodUID: uid})
		return
	}
	p, known := w.pods[uid]
	if !known {
		return
	}
	if !p.ranks[local] && len(p.ranks) >= w.limits.Ranks {
		w.refuse(uid, fmt.Errorf("pod %s: more than %d local ranks; the rest is left out", uid, w.limits.Ranks))
		return
	}
	p.ranks[local] = true
	w.emit(FileChange{Kind: map[fileKind]ChangeKind{fileRing: RingAppeared, fileRankSocket: SocketAppeared}[kind], PodUID: uid, Local: local})
}

func (w *Watcher) refuse(uid string, err error) {
	if w.full[uid] {
		return
	}
	if len(w.full) > w.limits.Pods {
		clear(w.full)
	}
	w.full[uid] = true
	w.emit(FileChange{Kind: Refused, PodUID: uid, Err: err})
}

func (w *Watcher) gone(uid string) {
	delete(w.full, uid)
	if _, known := w.pods[uid]; known {
		delete(w.pods, uid)
		w.emit(FileChange{Kind: PodGone, PodUID: uid})
	}
}

// event is one thing that inotify saw: name appeared in dir or left it, or, without a name, dir itself went.
func (w *Watcher) event(dir, name string, mask uint32) {
	appeared := mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0
	rel, err := filepath.Rel(w.podsDir(), dir)
	if err != nil || rel == "." && name == "" || rel == ".." || strings.HasPrefix(rel, "../") {
		w.overflow = true // an ancestor of the pods directory was made or went
		w.scanned = time.Time{}
		return
	}
	var parts []string
	if rel != "." {
		parts = strings.Split(rel, string(filepath.Separator))
	}
	uid := name
	if len(parts) > 0 {
		uid = parts[0]
	}
	_, known := w.pods[uid]
	switch {
	case !known && appeared:
		w.pod(uid)
	case known && len(parts) == len(podPath)+1 && appeared:
		if w.spend(uid) {
			w.file(uid, name)
		}
	case known && !appeared && (name == "" || len(parts) <= len(podPath)):
		w.gone(uid)
		w.pod(uid) // it may have been made again already
	}
}

// namesMask is for directories that no pod writes to: names that come and go.
const namesMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_MOVED_FROM

func (w *Watcher) watch(dir string) error { return w.watchFor(dir, namesMask) }

func (w *Watcher) watchFor(dir string, names uint32) error {
	err := w.notify.add(dir, names)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("watch %s: %w (inotify watches are bounded by fs.inotify.max_user_watches)", dir, err)
	}
	return err
}

// list calls f with each name in a directory, holding few at a time, and at most limit of them; 0 means all. more is true if some
// were left out.
func (w *Watcher) list(dir string, limit int, f func(name string)) (more bool, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return false, ignoreGone(err)
	}
	defer func() { _ = d.Close() }()
	for n := 0; ; {
		names, err := d.Readdirnames(readBatch)
		if n += len(names); limit > 0 && n > limit {
			return true, nil
		}
		for _, name := range names {
			f(name)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("list %s: %w", dir, err)
		}
	}
}

func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
