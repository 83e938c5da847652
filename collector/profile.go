//go:build profile

package collector

import (
	"fmt"
	"net/http"
	_ "net/http/pprof" // on the default mux
	"os"
)

// profileEnv is the address, host:port, at which a build with the tag profile serves profiles. make bench-agent uses it; no build that is
// shipped has it.
const profileEnv = "PITCREW_PPROF"

func init() {
	at := os.Getenv(profileEnv)
	if at == "" {
		return
	}
	go func() {
		fmt.Fprintf(os.Stderr, "%s: %v\n", profileEnv, http.ListenAndServe(at, nil))
	}()
}
