package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Python is an interpreter for training jobs.
type Python struct {
	Path  string
	Torch bool // false: the stand-in trainer is all that can run
}

// Trainer names the script that this interpreter can run, and what it is called where results are shown.
func (p Python) Trainer() (script, name string) {
	if p.Torch {
		return "train.py", "torch"
	}
	return "standin.py", "stand-in"
}

// FindPython returns the first of PITCREW_PYTHON, python3 on PATH, /usr/bin/python3 and the cache's own that has torch. Where none
// has, it installs it: Debian's python3-torch as root, else torch by pip into a virtual environment in the cache. Where that fails
// too it says so loudly on progress and returns an interpreter without torch. A PITCREW_PYTHON without torch is an error.
func FindPython(ctx context.Context, progress io.Writer) (Python, error) {
	if chosen := os.Getenv("PITCREW_PYTHON"); chosen != "" {
		if !hasTorch(ctx, chosen) {
			return Python{}, fmt.Errorf("PITCREW_PYTHON=%s cannot import torch: install it there, or unset PITCREW_PYTHON", chosen)
		}
		return Python{chosen, true}, nil
	}
	cache, err := CacheDir()
	if err != nil {
		return Python{}, err
	}
	venv := filepath.Join(cache, "torch")
	var candidates []string
	if path, err := exec.LookPath("python3"); err == nil {
		candidates = append(candidates, path)
	}
	candidates = append(candidates, "/usr/bin/python3", filepath.Join(venv, "bin", "python3"))
	plain := ""
	for _, path := range candidates {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if hasTorch(ctx, path) {
			return Python{path, true}, nil
		}
		if plain == "" {
			plain = path
		}
	}
	if plain == "" {
		return Python{}, fmt.Errorf("no Python 3 was found: install python3, or point PITCREW_PYTHON to one")
	}
	if path, ok := installTorch(ctx, plain, venv, progress); ok {
		return Python{path, true}, nil
	}
	fmt.Fprintln(progress, "WARNING: PyTorch could not be installed. The jobs run a STAND-IN without torch: what they show is no training.")
	return Python{plain, false}, nil
}

// hasTorch asks for the module without importing it, which takes a second.
func hasTorch(ctx context.Context, python string) bool {
	return exec.CommandContext(ctx, python, "-c",
		"import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None or u.find_spec('torch.distributed') is None)").Run() == nil
}

func installTorch(ctx context.Context, python, venv string, progress io.Writer) (string, bool) {
	pip := filepath.Join(venv, "bin", "python3")
	apt, aptErr := exec.LookPath("apt-get")
	for _, way := range []struct {
		what     string
		possible bool
		python   string
		commands [][]string
	}{
		{"python3-torch from the distribution", os.Geteuid() == 0 && aptErr == nil, "/usr/bin/python3", [][]string{
			{apt, "update", "-q"}, {apt, "install", "-y", "-q", "--no-install-recommends", "python3-torch"}}},
		{"torch for CPUs with pip into " + venv, true, pip, [][]string{
			{python, "-m", "venv", venv}, {pip, "-m", "pip", "install", "-q", "numpy", "torch", "--index-url", "https://download.pytorch.org/whl/cpu"}}},
		{"torch with pip into " + venv, true, pip, [][]string{
			{python, "-m", "venv", venv}, {pip, "-m", "pip", "install", "-q", "numpy", "torch"}}},
	} {
		if !way.possible {
			continue
		}
		fmt.Fprintf(progress, "installing %s (once)\n", way.what)
		if err := runAll(ctx, way.commands); err != nil {
			fmt.Fprintf(progress, "  that failed: %v\n", err)
			continue
		}
		if hasTorch(ctx, way.python) {
			return way.python, true
		}
	}
	return "", false
}

func runAll(ctx context.Context, commands [][]string) error {
	for _, argv := range commands {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", argv[0], err, out[max(0, len(out)-400):])
		}
	}
	return nil
}
