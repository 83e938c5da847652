package bus

import (
	"context"
	"fmt"
	"testing"
)

func TestAKeyThatIsWrittenWhileABucketIsListedIsListedOnce(t *testing.T) {
	b := testBus(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k := NewBucket[int](b, AttemptBucket)
	for n := range 20 {
		if err := k.Set(ctx, fmt.Sprint("job-", n), n); err != nil {
			t.Fatal(err)
		}
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		for n := 0; ctx.Err() == nil; n++ {
			_ = k.Set(ctx, fmt.Sprint("job-", n%20), n)
		}
	}()
	for range 100 {
		all, err := k.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, c := range all {
			if seen[c.Key] {
				t.Fatalf("%s is listed twice", c.Key)
			}
			seen[c.Key] = true
		}
		if len(seen) != 20 {
			t.Fatalf("%d of 20 keys are listed", len(seen))
		}
	}
	cancel()
	<-written
}
