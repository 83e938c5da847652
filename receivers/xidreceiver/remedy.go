package xidreceiver

import (
	"errors"
	"io/fs"
)

// remedy says what an operator can do about a log that cannot be opened.
func remedy(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run as root or with CAP_SYSLOG, and in a container as privileged: /dev/kmsg is closed to others"
	case errors.Is(err, fs.ErrNotExist):
		return "mount /dev/kmsg into the container, or set path"
	}
	return "see the error; the log is opened again by itself"
}
