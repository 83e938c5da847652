package hook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// FileChange is one thing that a Watcher saw. Changes may repeat; they say what to look at, not what is there.
type FileChange struct {
	Kind   ChangeKind
	PodUID string
	Local  int   // of a rank's ring or socket
	Err    error // of a Refused
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
	Refused // something was left out, with the reason
)

// Limits bound what one node's pods can make an agent hold.
type Limits struct {
	Pods  int // pods with a pitcrew directory
	Ranks int // local ranks of one pod
	// Lives bounds how many processes one local rank may have had. A pod that replaces its ring without end cannot
	// make label sets without end.
	Lives int
}

// DefaultLimits suit nodes of up to 16 GPUs with room for many restarts.
func DefaultLimits() Limits { return Limits{Pods: 512, Ranks: 64, Lives: 4096} }

// readBatch bounds how many names of a directory are held at once.
const readBatch = 256

// Watcher finds pod directories below a kubelet root and what appears in them, by inotify alone. Each directory is first
// watched and then listed, so nothing that is made in between is missed, however fast the levels are made.
type Watcher struct {
	root   string
	limits Limits
	emit   func(FileChange)

	fs *fsnotify.Watcher
	// pods are the pods with a pitcrew directory, each with its known local ranks.
	pods map[string]map[int]bool
	full map[string]bool // who was refused, said once
}

// NewWatcher makes a watcher of a kubelet root, which need not exist yet. emit is called from Run's goroutine.
func NewWatcher(root string, limits Limits, emit func(FileChange)) *Watcher {
	return &Watcher{root: filepath.Clean(root), limits: limits, emit: emit, pods: map[string]map[int]bool{}, full: map[string]bool{}}
}

// Run watches until ctx ends. Its error is that of inotify itself (usually a limit: fs.inotify.max_user_instances or _watches).
func (w *Watcher) Run(ctx context.Context) error {
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w (raise fs.inotify.max_user_instances)", w.root, err)
	}
	defer func() { _ = fs.Close() }()
	w.fs = fs
	if err := w.scan(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-fs.Events:
			err = w.event(e)
		case err = <-fs.Errors:
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				err = w.rescan() // the kernel dropped events: look at everything again
			}
		}
		if err != nil {
			return err
		}
	}
}

func (w *Watcher) podsDir() string { return filepath.Join(w.root, "pods") }

// scan watches <root>/pods, or while it is not there its nearest ancestor that is.
func (w *Watcher) scan() error {
	for dir := w.podsDir(); ; dir = filepath.Dir(dir) {
		err := w.watch(dir)
		if err == nil {
			if dir == w.podsDir() {
				w.dropAncestors()
				return w.list(dir, w.pod)
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
		_ = w.fs.Remove(d)
	}
	// The root tells when <root>/pods itself is made again.
	_ = w.fs.Add(w.root)
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
		w.pods[uid] = map[int]bool{}
		w.emit(FileChange{Kind: PodFound, PodUID: uid})
	}
	if err := w.watch(dir); err != nil {
		return err
	}
	// The levels between are of no more interest: <root>/pods tells the pod's end.
	for d := filepath.Dir(dir); d != w.podsDir(); d = filepath.Dir(d) {
		_ = w.fs.Remove(d)
	}
	return w.list(dir, func(name string) { w.file(uid, name) })
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
	ranks, known := w.pods[uid]
	if !known {
		return
	}
	if !ranks[local] && len(ranks) >= w.limits.Ranks {
		w.refuse(uid, fmt.Errorf("pod %s: more than %d local ranks; the rest is left out", uid, w.limits.Ranks))
		return
	}
	ranks[local] = true
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

func (w *Watcher) event(e fsnotify.Event) error {
	appeared, left := e.Has(fsnotify.Create), e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
	if !appeared && !left {
		return nil
	}
	rel, err := filepath.Rel(w.podsDir(), e.Name)
	if err != nil || rel == "." || rel == ".." || strings.HasPrefix(rel, "../") {
		return w.rescan() // an ancestor of the pods directory was made or went
	}
	parts := strings.Split(rel, string(filepath.Separator))
	uid := parts[0]
	if _, known := w.pods[uid]; known {
		switch {
		case len(parts) == len(podPath)+2 && appeared:
			w.file(uid, parts[len(parts)-1])
			return nil
		case len(parts) <= len(podPath)+1 && left:
			w.gone(uid)
			w.pod(uid) // it may have been made again already
		}
		return nil
	}
	if appeared {
		w.pod(uid)
	}
	return nil
}

func (w *Watcher) watch(dir string) error {
	err := w.fs.Add(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("watch %s: %w (inotify watches are bounded by fs.inotify.max_user_watches)", dir, err)
	}
	return err
}

// list calls f with each name in a directory, holding few at a time.
func (w *Watcher) list(dir string, f func(name string)) error {
	d, err := os.Open(dir)
	if err != nil {
		return ignoreGone(err)
	}
	defer func() { _ = d.Close() }()
	for {
		names, err := d.Readdirnames(readBatch)
		for _, n := range names {
			f(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
	}
}

func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
