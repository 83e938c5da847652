//go:build tools

// Package helm pins the helm with which the chart in deploy/ is tried.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
