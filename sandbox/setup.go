package sandbox

import (
	"context"
	"io"
)

// Prepared says what Setup made or found.
type Prepared struct {
	ControlPlane string `json:"control_plane"` // folder of the binaries
	JobSet       string `json:"jobset"`
	Helm         string `json:"helm"`
	Kwok         string `json:"kwok"`
	Python       string `json:"python"`
	Trainer      string `json:"trainer"` // torch, or stand-in where none can be had
}

// Setup builds or installs everything that Up, the demo and the tests need, so that later starts take seconds. It does nothing twice.
func Setup(ctx context.Context, progress io.Writer) (Prepared, error) {
	bin, err := Binaries(ctx, progress)
	if err != nil {
		return Prepared{}, err
	}
	jobset, err := jobSetAssets(ctx, progress)
	if err != nil {
		return Prepared{}, err
	}
	helm, err := Helm(ctx, progress)
	if err != nil {
		return Prepared{}, err
	}
	kwok, err := kwokBinary(ctx, progress)
	if err != nil {
		return Prepared{}, err
	}
	py, err := FindPython(ctx, progress)
	if err != nil {
		return Prepared{}, err
	}
	_, trainer := py.Trainer()
	return Prepared{bin, jobset, helm, kwok, py.Path, trainer}, nil
}
