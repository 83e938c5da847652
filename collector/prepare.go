package collector

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pitcrew/pitcrew/collector/promexporter"
)

// name gives the environment variables that name the node and its addresses, where they are not set, a value from this machine.
func name() error {
	if os.Getenv("PITCREW_NODE") == "" {
		node := os.Getenv("NODE_NAME") // by the downward API
		if node == "" {
			var err error
			if node, err = os.Hostname(); err != nil {
				return fmt.Errorf("node has no name; set PITCREW_NODE: %w", err)
			}
		}
		if err := os.Setenv("PITCREW_NODE", node); err != nil {
			return err
		}
	}
	self := os.Getenv("PITCREW_SELF")
	if self == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(self) // as the other addresses are; the SDK wants them apart
	if err != nil {
		return fmt.Errorf("PITCREW_SELF: %w", err)
	}
	return errors.Join(os.Setenv("PITCREW_SELF_HOST", host), os.Setenv("PITCREW_SELF_PORT", port))
}

// Prepare makes the surroundings in which the mode's configuration starts without a flag: names and folders that work on this
// machine for what the environment does not say, and no socket left by a killed agent.
func Prepare(m Mode) error {
	if err := name(); err != nil {
		return err
	}
	if m == Router {
		return routes()
	}
	user, err := os.UserCacheDir()
	if err != nil {
		user = filepath.Join(os.TempDir(), fmt.Sprintf("pitcrew-%d", os.Getuid()))
	}
	if m == Gateway {
		return gatewayFiles(user)
	}
	for _, d := range []struct{ env, root, user string }{
		{"PITCREW_RUN_DIR", "/run/pitcrew", filepath.Join(user, "pitcrew", "run")},
		{"PITCREW_STATE_DIR", "/var/lib/pitcrew", filepath.Join(user, "pitcrew", "state")},
	} {
		if err := folder(d.env, d.root, d.user); err != nil {
			return err
		}
	}
	if m == DCGM && os.Getenv(FamiliesEnv) == promexporter.PitcrewFamilies && os.Getenv("PITCREW_DCGM_NAMES") == "" {
		return os.Setenv("PITCREW_DCGM_NAMES", "false") // nothing would read them
	}
	if m != Agent {
		return nil
	}
	if os.Getenv(GatewaysEnv) != "" && os.Getenv(GatewayEnv) == "" {
		return fmt.Errorf("%s is for a router (pitcrew-gateway router), and this is an agent: it takes the router's or a gateway's address, %s=router:4319", GatewaysEnv, GatewayEnv)
	}
	if os.Getenv(ScrapeEnv) != "" {
		if _, err := addresses(ScrapeEnv, ScrapeEnv+"='[127.0.0.1:8082]'"); err != nil {
			return err
		}
	}
	for _, s := range sockets() {
		if err := os.MkdirAll(filepath.Dir(s), 0o755); err != nil {
			return fmt.Errorf("folder of a socket, below PITCREW_RUN_DIR: %w", err)
		}
		if err := clearSocket(s); err != nil {
			return err
		}
	}
	return nil
}

// FamiliesEnv chooses what the node's Prometheus endpoint serves: all, dcgm or pitcrew.
const FamiliesEnv = "PITCREW_PROMETHEUS_FAMILIES"

// ClassesEnv names the file in which a gateway keeps what it learnt of workloads; set to nothing: none.
const ClassesEnv = "PITCREW_CLASSES_FILE"

// JobsEnv names the file in which a gateway keeps what it knows of running jobs; set to nothing: none.
const JobsEnv = "PITCREW_JOBS_FILE"

// gatewayFiles gives a gateway files for what it knows. One that may write nowhere keeps it in memory.
func gatewayFiles(user string) error {
	var errs []error
	for env, name := range map[string]string{ClassesEnv: "classes.snapshot", JobsEnv: "jobs.snapshot"} {
		if _, said := os.LookupEnv(env); said {
			continue
		}
		if folder("PITCREW_STATE_DIR", "/var/lib/pitcrew", filepath.Join(user, "pitcrew", "state")) != nil {
			return nil
		}
		errs = append(errs, os.Setenv(env, filepath.Join(os.Getenv("PITCREW_STATE_DIR"), name)))
	}
	return errors.Join(errs...)
}

// folder makes the folder that the variable names; without one the system's, or the user's own where that may not be written.
func folder(env, system, user string) error {
	if dir := os.Getenv(env); dir != "" {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("%s: %w", env, err)
		}
		return nil
	}
	dir := system
	if os.MkdirAll(dir, 0o750) != nil || syscall.Access(dir, 2) != nil {
		dir = user
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("no folder can be written; set %s: %w", env, err)
		}
	}
	return os.Setenv(env, dir)
}

// clearSocket removes a socket on which nobody listens. One in use is left, and starting then fails on it by name.
func clearSocket(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is in the way and is no socket; move it, or set PITCREW_RUN_DIR", path)
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("another agent listens on %s; end it, or set PITCREW_RUN_DIR", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
