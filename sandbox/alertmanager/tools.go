//go:build tools

// Package alertmanager pins the Alertmanager with which the configuration in deploy/alertmanager is tried.
package alertmanager

import _ "github.com/prometheus/alertmanager/cmd/alertmanager"
