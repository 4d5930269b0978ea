package cloudfake

import (
	"strings"
	"time"
)

// Bucket is a token bucket: full at first, one token a call that is not refused.
type Bucket struct {
	Rate float64 // tokens a second
	Size float64
}

// bucket is a Bucket with what is in it.
type bucket struct {
	Bucket
	tokens float64
	at     time.Time
}

func newBucket(b *Bucket, now time.Time) *bucket {
	if b == nil {
		return nil
	}
	return &bucket{Bucket: *b, tokens: b.Size, at: now}
}

func (b *bucket) fill(now time.Time) bool {
	b.tokens = min(b.Size, b.tokens+now.Sub(b.at).Seconds()*b.Rate)
	b.at = now
	return b.tokens >= 1-1e-9
}

// SetBuckets changes the limits: those of all actions, if not nil, and of
// single ones, as in Options. All buckets are full then.
func (f *Front) SetBuckets(shared *Bucket, own map[string]Bucket) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = own
	f.shared = newBucket(shared, f.clock.Now())
	clear(f.buckets)
}

// bucketOf is the action's own bucket; nil when it has none. f.mu is held.
func (f *Front) bucketOf(op string, now time.Time) *bucket {
	if b, ok := f.buckets[op]; ok {
		return b
	}
	b, ok := f.own[op]
	if !ok && strings.HasPrefix(op, "Describe") {
		b, ok = f.own["Describe"]
	}
	if !ok {
		b, ok = f.own[""]
	}
	if ok {
		f.buckets[op] = newBucket(&b, now)
	} else {
		f.buckets[op] = nil
	}
	return f.buckets[op]
}

// Draw takes the tokens of a call of op if they are there, as the call of
// another client of the account does. It counts in no Stats.
func (f *Front) Draw(op string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.admit(op)
}

// admit takes the tokens for a call, of both buckets or of none. f.mu is held.
func (f *Front) admit(op string) bool {
	now := f.clock.Now()
	own := f.bucketOf(op, now)
	if own != nil && !own.fill(now) || f.shared != nil && !f.shared.fill(now) {
		return false
	}
	for _, b := range []*bucket{own, f.shared} {
		if b != nil {
			b.tokens--
		}
	}
	return true
}
