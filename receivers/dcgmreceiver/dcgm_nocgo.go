//go:build !cgo || !linux

package dcgmreceiver

import (
	"fmt"

	"go.uber.org/zap"
)

// noDCGM is the source of a build without cgo: it can only say so.
type noDCGM struct{ *Replay }

func newDCGM(*Config, *zap.Logger) Source { return noDCGM{NewReplay()} }

// Connect implements Source.
func (noDCGM) Connect() error {
	return fmt.Errorf("the dcgm receiver is %w: build the collector with CGO_ENABLED=1 on Linux, or set mode: replay", errForGood)
}
