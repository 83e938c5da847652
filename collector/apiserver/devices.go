package apiserver

import (
	"context"
	"errors"
)

// Device is what a ResourceSlice says of a device that a DRA driver offers.
type Device struct {
	Driver, Pool, Name string // as a claim names it
	UUID               string // GPU-… or MIG-…
	Parent             string // of an instance: its GPU's UUID
}

type sliceList struct {
	Items []struct {
		Spec struct {
			Driver string `json:"driver"`
			Pool   struct {
				Name       string `json:"name"`
				Generation int64  `json:"generation"`
			} `json:"pool"`
			Devices []struct {
				Name       string                    `json:"name"`
				Attributes map[string]sliceAttribute `json:"attributes"`
			} `json:"devices"`
		} `json:"spec"`
	} `json:"items"`
}

type sliceAttribute struct {
	String string `json:"string"`
}

// Devices lists the devices with a UUID that DRA drivers offer on the node, by the newest generation of each pool. A server without
// resource.k8s.io/v1 (before 1.34) has none.
func (c *Client) Devices(ctx context.Context) ([]Device, error) {
	if c == nil {
		return nil, nil
	}
	var l sliceList
	if err := c.list(ctx, "/apis/resource.k8s.io/v1/resourceslices", "application/json", &l); err != nil {
		if errors.Is(err, errAbsent) {
			return nil, nil
		}
		return nil, err
	}
	return l.devices(), nil
}

func (l *sliceList) devices() []Device {
	type pool struct{ driver, name string }
	newest := map[pool]int64{}
	for i := range l.Items {
		s := &l.Items[i].Spec
		p := pool{s.Driver, s.Pool.Name}
		newest[p] = max(newest[p], s.Pool.Generation)
	}
	var out []Device
	for i := range l.Items {
		s := &l.Items[i].Spec
		if s.Pool.Generation < newest[pool{s.Driver, s.Pool.Name}] {
			continue
		}
		for _, d := range s.Devices {
			of := func(name string) string { // a name without a domain is the driver's own
				if a, ok := d.Attributes[name]; ok {
					return a.String
				}
				return d.Attributes[s.Driver+"/"+name].String
			}
			if uuid := of("uuid"); uuid != "" && len(out) < maxItems {
				out = append(out, Device{Driver: s.Driver, Pool: s.Pool.Name, Name: d.Name, UUID: uuid, Parent: of("parentUUID")})
			}
		}
	}
	return out
}
