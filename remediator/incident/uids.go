package incident

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// UIDs is a set of pods by UID. In JSON it is compact: the pods of a gang of 4,096 take 90 KiB, where a record may have 1 MiB. UIDs that
// are no UUIDs are kept as they are.
type UIDs []string

// Has reports whether the set has the pod.
func (u UIDs) Has(uid string) bool { return uid != "" && slices.Contains(u, uid) }

type packedUIDs struct {
	UUIDs string   `json:"uuids,omitempty"` // 16 bytes each, base64
	Other []string `json:"other,omitempty"`
}

// MarshalJSON packs the set.
func (u UIDs) MarshalJSON() ([]byte, error) {
	var p packedUIDs
	var raw []byte
	for _, uid := range u {
		b, err := hex.DecodeString(strings.ReplaceAll(uid, "-", ""))
		if err != nil || len(b) != 16 || unpackUUID(b) != uid {
			p.Other = append(p.Other, uid)
			continue
		}
		raw = append(raw, b...)
	}
	p.UUIDs = base64.RawStdEncoding.EncodeToString(raw)
	return json.Marshal(p)
}

// UnmarshalJSON unpacks a set.
func (u *UIDs) UnmarshalJSON(raw []byte) error {
	var p packedUIDs
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	b, err := base64.RawStdEncoding.DecodeString(p.UUIDs)
	if err != nil || len(b)%16 != 0 {
		return fmt.Errorf("set of UIDs: %d bytes of UUIDs: %w", len(b), err)
	}
	*u = nil
	for ; len(b) > 0; b = b[16:] {
		*u = append(*u, unpackUUID(b[:16]))
	}
	*u = append(*u, p.Other...)
	return nil
}

func unpackUUID(b []byte) string {
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
