package freeport

import (
	"net"
	"strconv"
	"testing"
)

func TestNoPortIsGivenTwice(t *testing.T) {
	given := map[int]bool{}
	for range 2000 { // of 10,000: without claims some 190 would come again
		p, err := Claim()
		if err != nil {
			t.Fatal(err)
		}
		if given[p] {
			t.Fatalf("%d came twice", p)
		}
		given[p] = true
	}
}

func TestAPortThatIsInUseIsNotGiven(t *testing.T) {
	l, err := net.Listen("tcp", Loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if claim(port) {
		t.Errorf("%d was given though it was claimed", port)
	}
	outsider, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer outsider.Close()
	_, p, _ := net.SplitHostPort(outsider.Addr().String())
	if port, _ = strconv.Atoi(p); claim(port) {
		t.Errorf("%d was given though somebody listens on it", port)
	}
}
