package collector

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The program's file is 36 MB, and most of it is run at the start alone. A kernel that keeps it in large folios maps all of it at the first
// touch, in each of a node's two processes, and what is mapped is the last to be reclaimed. So the processes of a node ask for small pages
// and unmap the file once they run, and now and then after that. What they use is mapped again at its next use, from the page cache: a fault that reads no disk.

// smallPages asks the kernel to map files page by page. A kernel that refuses maps as it did.
func smallPages() { _ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) }

// mapping is a part of this process's memory.
type mapping struct {
	from, to  uintptr
	writable  bool
	file      string
	anonymous int // KiB that differ from the file: relocations of the loader
}

// releasable reports whether the mapping's content is the file's and nothing but the file's.
func (m mapping) releasable(exe string) bool { return m.file == exe && !m.writable && m.anonymous == 0 }

// program is what is mapped of the program's own file and can be unmapped at any time.
type program []mapping

// thisProgram finds it. It stays the same for the life of the process.
func thisProgram() (p program, _ error) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := mappings(f)
	for _, m := range all {
		if m.releasable(exe) {
			p = append(p, m)
		}
	}
	return p, err
}

// release unmaps the file and returns how many bytes of address space that was.
func (p program) release() (released uintptr, _ error) {
	for _, m := range p {
		if _, _, e := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); e != 0 {
			return released, fmt.Errorf("madvise: %w", e)
		}
		released += m.to - m.from
	}
	return released, nil
}

// mappings reads smaps.
func mappings(r io.Reader) (out []mapping, _ error) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) >= 5 && !strings.HasSuffix(f[0], ":") {
			from, to, _ := strings.Cut(f[0], "-")
			a, err1 := strconv.ParseUint(from, 16, 64)
			b, err2 := strconv.ParseUint(to, 16, 64)
			if err1 != nil || err2 != nil {
				return nil, fmt.Errorf("smaps: unexpected line %q", s.Text())
			}
			m := mapping{from: uintptr(a), to: uintptr(b), writable: strings.Contains(f[1], "w")}
			if len(f) >= 6 {
				m.file = strings.Join(f[5:], " ")
			}
			out = append(out, m)
			continue
		}
		if len(f) == 3 && f[0] == "Anonymous:" && len(out) > 0 {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				return nil, fmt.Errorf("smaps: unexpected line %q", s.Text())
			}
			out[len(out)-1].anonymous = n
		}
	}
	return out, s.Err()
}
