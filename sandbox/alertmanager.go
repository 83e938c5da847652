package sandbox

import (
	"context"
	"io"
	"path/filepath"
)

// Alertmanager returns the path of the Alertmanager that is pinned in sandbox/alertmanager, built once into the cache (three minutes on two cores).
func Alertmanager(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := buildCached(ctx, "alertmanager", []struct{ name, pkg string }{{"alertmanager", "github.com/prometheus/alertmanager/cmd/alertmanager"}}, progress)
	return filepath.Join(dir, "alertmanager"), err
}
