package bus

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ClassRecord is what one gateway saw of one run of a workload: a part of the union that gateways make of what they know
// (docs/decisions/0006). What is in it, the engine of classes alone says.
type ClassRecord struct {
	Gateway string `json:"gateway"`
	ID      string `json:"id"` // tells the gateway's records apart
	Raw     []byte `json:"record"`
}

const (
	classesFor    = 31 * 24 * time.Hour // after which a record is forgotten that its gateway has not set again
	classesMost   = 128 << 20           // bytes, of all gateways
	maxClassRaw   = 384 << 10
	maxClassName  = 256                     // bytes of a gateway's name or an id
	maxClassValue = maxClassRaw/3*4 + 4<<10 // as JSON
	optionalIn    = 2 * time.Second         // a bucket that its maker has no right to make, or to look for, holds nothing up for longer
)

func (b *Bus) classes() Bucket[ClassRecord] { return NewBucket[ClassRecord](b, ClassBucket) }

// classID is the key under which a record lies in its bucket: where its gateway may write, and nobody else.
func (b *Bus) classID(r ClassRecord) string {
	return b.cluster + "\n" + gatewayMark + r.Gateway + "\n" + r.ID
}

func (r ClassRecord) validate() error {
	switch {
	case r.Gateway == "" || r.ID == "" || len(r.Gateway) > maxClassName || len(r.ID) > maxClassName:
		return fmt.Errorf("gateway and id must have 1 to %d bytes", maxClassName)
	case len(r.Raw) == 0 || len(r.Raw) > maxClassRaw:
		return fmt.Errorf("a record of %d bytes: 1 to %d are taken", len(r.Raw), maxClassRaw)
	}
	return nil
}

// SetClass makes a record known to the cluster's other gateways, in place of the version before.
func (b *Bus) SetClass(ctx context.Context, r ClassRecord) error {
	if err := r.validate(); err != nil {
		return fmt.Errorf("class record %q: %w", r.ID, err)
	}
	return b.classes().Set(ctx, b.classID(r), r)
}

// RemoveClass takes a record of a gateway away; who has taken it in keeps it.
func (b *Bus) RemoveClass(ctx context.Context, gateway, id string) error {
	return b.classes().Remove(ctx, b.classID(ClassRecord{Gateway: gateway, ID: id}))
}

var errElsewhere = errors.New("it lies under another gateway's key, or under another record's")

// WatchClasses gives the records of the cluster's gateways, as Bucket.Watch does, those that were taken away left out. One that is malformed, or lies
// where another gateway may write, is handed to refused and nowhere else.
func (b *Bus) WatchClasses(ctx context.Context, current func(), handle func(ClassRecord), refused func(key string, err error)) error {
	return b.classes().refusing(refused).Watch(ctx, current, func(c Change[ClassRecord]) {
		if c.Deleted || !b.ours(c.Key) {
			return
		}
		err := c.Value.validate()
		if err == nil && c.Key != b.classID(c.Value) {
			err = errElsewhere
		}
		if err != nil {
			refused(c.Key, err)
			return
		}
		handle(c.Value)
	})
}

// OffersMost is how many records are given at a time: 256 of some 12 KiB each.
const OffersMost = 256

// ClassKeeper is a gateway's store of classes, as those who exchange them see it. Its methods may be called by several at once, and wait for no NATS.
type ClassKeeper interface {
	// Offers are records that changed since they were given, at most OffersMost, and those, Gone, that are to be taken away.
	Offers() []ClassOffer
	// Given says that an offer was carried out.
	Given(ClassOffer)
	// Take takes in a record, of this gateway (of before) or another one. On an error nothing of it was.
	Take(ClassRecord) error
}

// ClassOffer is what a gateway has to give.
type ClassOffer struct {
	ClassRecord
	Gone bool
}
