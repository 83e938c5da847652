package xidreceiver

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"

	"github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"
)

// position is how far the log was read and published, in which boot.
type position struct {
	BootID string `json:"boot_id"`
	Seq    uint64 `json:"seq"`
	Usec   uint64 `json:"usec"`
	// UUIDs is what was learnt about this boot's GPUs, by PCI address: the ring
	// may have overwritten the lines by the next start.
	UUIDs map[string]string `json:"uuids,omitempty"`
}

const (
	positionKey = "position"
	storageName = "" // one client for the component
)

// openStorage returns the client of the configured storage extension.
func openStorage(ctx context.Context, host component.Host, id *component.ID, self component.ID) (storage.Client, error) {
	if id == nil {
		return storage.NewNopClient(), nil
	}
	ext, ok := host.GetExtensions()[*id]
	if !ok {
		return nil, fmt.Errorf("storage: extension %q is not configured; add it under extensions and service::extensions", id)
	}
	st, ok := ext.(storage.Extension)
	if !ok {
		return nil, fmt.Errorf("storage: extension %q keeps no data; file_storage does", id)
	}
	return st.GetClient(ctx, component.KindReceiver, self, storageName)
}

// loadPosition returns the stored position, nil for none. One that cannot be
// read is an error to report, and none.
func loadPosition(ctx context.Context, c storage.Client) (*position, error) {
	data, err := c.Get(ctx, positionKey)
	if err != nil || data == nil {
		return nil, err
	}
	var p position
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("stored position: %w", err)
	}
	return &p, nil
}

func savePosition(ctx context.Context, c storage.Client, p position, uuids map[kernel.Address]string) error {
	p.UUIDs = make(map[string]string, len(uuids))
	for a, uuid := range uuids {
		p.UUIDs[a.String()] = uuid
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return c.Set(ctx, positionKey, data)
}

// readBootID returns the id of this boot, "" where it cannot be read.
func readBootID(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
