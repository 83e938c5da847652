// Package freeport finds ports that a process started later can listen on.
//
// It promises that no port is given twice while the process that asked lives, to it or to another that asks here, and that none is one
// of those that the system gives to connections or the remediator to attempts: such a one could be taken before it is used.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are drawn from here, below the remediator's (20000 to 29999) and Linux' default ip_local_port_range (32768 to 60999).
const (
	lowest = 10000
	number = 10000
)

// claims keep what was given from being given again: a name in the abstract socket namespace has one owner, and ends with its process.
var claims struct {
	mu   sync.Mutex
	held []net.Listener
}

// Claim gives a TCP port that nobody listens on.
func Claim() (int, error) {
	for range 200 {
		if port := lowest + rand.N(number); claim(port) {
			return port, nil
		}
	}
	return 0, errors.New("no free port found between 10000 and 20000 in 200 tries: what listens there? (ss -ltn)")
}

func claim(port int) bool {
	mine, err := net.Listen("unix", "@pitcrew-freeport-"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		mine.Close()
		return false
	}
	claims.mu.Lock()
	defer claims.mu.Unlock()
	claims.held = append(claims.held, mine)
	return true
}

// Loopback is the address of a claimed port, for tests; t is a testing.TB.
func Loopback(t interface {
	Helper()
	Fatal(args ...any)
}) string {
	t.Helper()
	port, err := Claim()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}
