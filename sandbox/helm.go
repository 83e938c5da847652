package sandbox

import (
	"context"
	"io"
	"path/filepath"
)

// Helm returns the path of the helm that is pinned in sandbox/helm, built once into the cache (two minutes on two cores).
func Helm(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := buildCached(ctx, "helm", []struct{ name, pkg string }{{"helm", "helm.sh/helm/v4/cmd/helm"}}, progress)
	return filepath.Join(dir, "helm"), err
}
