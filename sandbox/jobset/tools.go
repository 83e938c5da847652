//go:build tools

// Package jobset pins the JobSet controller that the sandbox runs.
package jobset

import _ "sigs.k8s.io/jobset"
