package sandboxcmd

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// detachedLog is the log file of `up --detach`, beside the state directory. Its first line names the state directory.
// A file of the same name without that line belongs to somebody else: it is neither overwritten nor removed.
type detachedLog struct{ dir string }

func (l detachedLog) path() string { return l.dir + ".log" }

func (l detachedLog) firstLine() string {
	return "pitcrew sandbox up --detach --dir " + l.dir
}

// ours reports whether the file exists and was written by create. A symbolic link is never ours.
func (l detachedLog) ours() bool {
	if st, err := os.Lstat(l.path()); err != nil || !st.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(l.path())
	if err != nil {
		return false
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(f, 4096).ReadSlice('\n')
	return err == nil && strings.TrimSuffix(string(line), "\n") == l.firstLine()
}

// create opens a new log. It replaces the log of an earlier detached start and refuses any other file.
func (l detachedLog) create() (*os.File, error) {
	l.remove()
	f, err := os.OpenFile(l.path(), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if os.IsExist(err) {
		return nil, fmt.Errorf("%s exists and is not a log of `pitcrew sandbox up`: move it away or choose another --dir", l.path())
	}
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintln(f, l.firstLine()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// remove deletes the log if it is ours.
func (l detachedLog) remove() {
	if l.ours() {
		_ = os.Remove(l.path())
	}
}
