package hook

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// ticksPerSecond is USER_HZ, the unit of times in /proc, which Linux has fixed at 100 for user space.
const ticksPerSecond = 100

// procStat reads the state letter and the start time (since boot) of a process from <proc>/<pid>/stat.
func procStat(proc string, pid int) (state string, start time.Duration, err error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, err
	}
	// The second field is the name in brackets, which may hold anything.
	i := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[i+1:])
	if i < 0 || len(fields) < 20 {
		return "", 0, fmt.Errorf("%s/%d/stat: cannot be parsed", proc, pid)
	}
	ticks, err := strconv.ParseInt(string(fields[19]), 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("%s/%d/stat: start time: %w", proc, pid, err)
	}
	return string(fields[0]), time.Duration(ticks) * time.Second / ticksPerSecond, nil
}
