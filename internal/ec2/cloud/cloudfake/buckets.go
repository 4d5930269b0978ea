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
func (c *Cloud) SetBuckets(shared *Bucket, own map[string]Bucket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.Shared, c.options.Buckets = shared, own
	c.shared = newBucket(shared, c.clock.Now())
	clear(c.buckets)
}

// bucketOf is the action's own bucket; nil when it has none. c.mu is held.
func (c *Cloud) bucketOf(op string, now time.Time) *bucket {
	if b, ok := c.buckets[op]; ok {
		return b
	}
	b, ok := c.options.Buckets[op]
	if !ok && strings.HasPrefix(op, "Describe") {
		b, ok = c.options.Buckets["Describe"]
	}
	if !ok {
		b, ok = c.options.Buckets[""]
	}
	if ok {
		c.buckets[op] = newBucket(&b, now)
	} else {
		c.buckets[op] = nil
	}
	return c.buckets[op]
}

// Draw takes the tokens of a call of op if they are there, as the call of
// another client of the account does. It counts in no Stats.
func (c *Cloud) Draw(op string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.admit(op)
}

// admit takes the tokens for a call, of both buckets or of none. c.mu is held.
func (c *Cloud) admit(op string) bool {
	now := c.clock.Now()
	own := c.bucketOf(op, now)
	if own != nil && !own.fill(now) || c.shared != nil && !c.shared.fill(now) {
		return false
	}
	for _, b := range []*bucket{own, c.shared} {
		if b != nil {
			b.tokens--
		}
	}
	return true
}
