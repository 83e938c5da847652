package kernel

import "testing"

// An unprivileged user names files, and the kernel prints those names.
func TestASegfaultInAFileNamedLikeAnXidIsNoXid(t *testing.T) {
	var p Parser
	var e Event
	for _, text := range []string{
		"python[77]: segfault at 0 ip 00007f sp 00007f error 4 in NVRM: Xid (PCI:0000:01:00): 79, gone[7f00+1000]",
		"python[77]: segfault at 0 ip 00007f sp 00007f error 4 in x: NVRM: Xid (PCI:0000:01:00): 79, gone[7f00+1000]",
		"[x] NVRM: fake",
	} {
		if r := p.Parse([]byte(text), &e); r == IsEvent {
			t.Errorf("%s: taken for %+v", text, e)
		}
	}
	if r := p.Parse([]byte("kernel: [123.456789] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate"), &e); r != IsEvent || e.Code != 20009 {
		t.Errorf("a line injected with its prefix: %v %+v", r, e)
	}
}

// What a segfault line says was seen on a real kernel (6.18): a program's file
// name and its own name (prctl) come as its user chose them, newlines included.
func TestAProcessThatNamesItselfLikeTheDriverIsNotTheDriver(t *testing.T) {
	const tail = " segfault at 0 ip 000055d0f93bc170 sp 00007ffe069fac10 error 6 in "
	for _, text := range []string{
		`NVRM: x[1695]:` + tail + `a\x0aNVRM: Xid (PCI:0000:01:00): 79, pid=1, x[1170,55d0f93bc000+1000]`,
		`python[1695]:` + tail + `a\x0aNVRM: Xid (PCI:0000:01:00): 79, pid=1, x[1170,55d0f93bc000+1000]`,
		`python[1695]:` + tail + `a\x0aNVRM: GPU at PCI:0000:01:00: GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2[1170,55d0f93bc000+1000]`,
		`python[1695]:` + tail + `a\x0anvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, x[1170,55d0f93bc000+1000]`,
		`a\x0aNVRM: Xid (PC[1695]:` + tail + `b\x0aNVRM: Xid (PCI:0000:01:00): 79, x[1170,55d0f93bc000+1000]`,
		`NVRM: x[1694]:` + tail + `RmInitAdapter failed 0000:01:00[1170,55af47b00000+1000]`,
		`kernel: NVRM: a[1694]:` + tail + `RmInitAdapter failed 0000:01:00[1170,55af47b00000+1000]`,
		`mlx5_assert_var[1692]:` + tail + `x[1170,55bdeddd6000+1000]`,
		`mlx5_ Link down[1692]:` + tail + `0000:01:00[1170,55bdeddd6000+1000]`,
	} {
		var p Parser
		var e Event
		for line := range Lines(Unescape(nil, []byte(text))) {
			if r := p.Parse(line, &e); r == IsEvent || r == Learnt {
				t.Errorf("%s: taken for %v %+v", text, r, e)
			}
		}
	}
	var p Parser
	var e Event
	events := 0
	for line := range Lines([]byte("NVRM: The NVIDIA GPU 0000:0a:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.")) {
		if p.Parse(line, &e) == IsEvent {
			events++
		}
	}
	if events != 1 || e.Kind != GPULost || e.PCI.String() != "0000:0a:00" {
		t.Errorf("the driver's own record of three lines: %d events, %+v", events, e)
	}
}
