package podresources

import "maps"

// LearnHolders notes who holds a device by the word of its own exporter. It counts where the kubelet's names say nothing: other makers' device
// plugins do not name a device as its exporter does, and Ascend's may be told by the scheduler to give another one than the kubelet chose.
func (c *Client) LearnHolders(device string, by []Holder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if _, known := c.told[device]; !known && len(c.told) >= maxDevices {
		maps.DeleteFunc(c.told, func(_ string, h holding) bool { return now.Sub(h.seen) > KeepFor })
		if len(c.told) >= maxDevices {
			return
		}
	}
	h := holding{seen: now}
	for _, x := range by[:min(len(by), maxHolders)] {
		h.by = append(h.by, share{Holder: x})
	}
	c.told[device] = h
}
