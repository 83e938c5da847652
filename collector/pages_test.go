package collector

import (
	"os"
	"strings"
	"testing"
)

const someMaps = `00400000-01462000 r-xp 00000000 fd:01 77 /usr/bin/pitcrew-collector
Rss:               17000 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
01462000-0267d000 r--p 01062000 fd:01 77 /usr/bin/pitcrew-collector
Rss:               17000 kB
Anonymous:             0 kB
0267d000-0267e000 r--p 0227d000 fd:01 77 /usr/bin/pitcrew-collector
Rss:                   4 kB
Anonymous:             4 kB
0267e000-026e0000 rw-p 0227e000 fd:01 77 /usr/bin/pitcrew-collector
Rss:                 300 kB
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fd:01 78 /usr/lib/libc.so.6
Anonymous:             0 kB
7f0000002000-7f0000003000 r--p 00000000 00:00 0
Anonymous:             0 kB
`

func TestOnlyWhatIsTheFilesIsReleased(t *testing.T) {
	all, err := mappings(strings.NewReader(someMaps))
	if err != nil {
		t.Fatal(err)
	}
	var got []uintptr
	for _, m := range all {
		if m.releasable("/usr/bin/pitcrew-collector") {
			got = append(got, m.from)
		}
	}
	if len(all) != 6 || len(got) != 2 || got[0] != 0x400000 || got[1] != 0x1462000 {
		t.Errorf("%d mappings; released are %x: relocations of the loader, variables and libraries must stay", len(all), got)
	}
}

func TestTheProgramRunsOnAfterItsFileIsReleased(t *testing.T) {
	smallPages()
	p, err := thisProgram()
	if err != nil {
		t.Fatal(err)
	}
	before := programRSS(t)
	released, err := p.release()
	if err != nil {
		t.Fatal(err)
	}
	after := programRSS(t)
	if released == 0 || after >= before*3/4 {
		t.Errorf("released %d bytes: %d KiB of the program were mapped before and %d after", released, before, after)
	}
}

// programRSS is how many KiB of this program's own file are mapped.
func programRSS(t *testing.T) (kib int) {
	t.Helper()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	own := false
	for l := range strings.Lines(string(raw)) {
		f := strings.Fields(l)
		if len(f) >= 5 && !strings.HasSuffix(f[0], ":") {
			own = f[len(f)-1] == exe
		} else if own && f[0] == "Rss:" {
			kib += atoi(t, f[1])
		}
	}
	return kib
}

func atoi(t *testing.T, s string) (n int) {
	t.Helper()
	for _, c := range s {
		n = 10*n + int(c-'0')
	}
	return n
}
