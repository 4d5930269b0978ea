package vpc

import (
	"strings"
	"time"

	"github.com/berthnet/berth/internal/vpclab/spec"
)

// bucket is a token bucket.
type bucket struct {
	spec.RateLimit
	tokens float64
	last   time.Time
}

func (b *bucket) take(now time.Time) bool {
	b.tokens = min(b.Bucket, b.tokens+b.Refill*now.Sub(b.last).Seconds())
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// The documented buckets (EC2 Developer Guide, "Request throttling for the
// Amazon EC2 API", request token limits).
var (
	nonMutating = spec.RateLimit{Bucket: 100, Refill: 20}
	unbounded   = spec.RateLimit{Bucket: 50, Refill: 10}
	mutating    = spec.RateLimit{Bucket: 50, Refill: 5}
	documented  = map[string]spec.RateLimit{
		"AssignIpv6Addresses":        {Bucket: 100, Refill: 5},
		"AssignPrivateIpAddresses":   {Bucket: 100, Refill: 5},
		"UnassignIpv6Addresses":      {Bucket: 100, Refill: 5},
		"UnassignPrivateIpAddresses": {Bucket: 100, Refill: 5},
		"CreateTags":                 {Bucket: 100, Refill: 10},
		"DeleteTags":                 {Bucket: 100, Refill: 10},
		"RunInstances":               {Bucket: 5, Refill: 2},
		"StartInstances":             {Bucket: 5, Refill: 2},
		"TerminateInstances":         {Bucket: 100, Refill: 5},
	}
)

// takeToken takes a token of the call's bucket, and tells whether there was one.
func (g *gate) takeToken(call Call, now time.Time) bool {
	limit, name, ok := g.limitOf(call)
	if !ok {
		return true
	}
	b := g.buckets[name]
	if b == nil {
		b = &bucket{limit, limit.Bucket, now}
		g.buckets[name] = b
	}
	return b.take(now)
}

// limitOf finds the bucket of a call: one set for its action, else for the
// longest pattern that covers it, else the documented one. Each action has a
// bucket of its own even where a pattern sets the limit.
func (g *gate) limitOf(call Call) (l spec.RateLimit, name string, ok bool) {
	best := ""
	for p, limit := range g.limits {
		if match(p, call.Action) && (!ok || strings.EqualFold(p, call.Action) || len(p) > len(best) && !strings.EqualFold(best, call.Action)) {
			l, best, ok = limit, p, true
		}
	}
	if ok || !g.throttle {
		return l, call.Action, ok
	}
	if l, ok := documented[call.Action]; ok {
		return l, call.Action, true
	}
	switch {
	case !strings.HasPrefix(call.Action, "Describe"):
		return mutating, call.Action, true
	case call.Unbounded:
		return unbounded, call.Action + " unbounded", true
	default:
		return nonMutating, call.Action, true
	}
}

// SetRateLimit sets the token bucket of an action (name or pattern) and fills
// it; calls that share a pattern have a bucket an action.
func (c *Cloud) SetRateLimit(action string, l spec.RateLimit) {
	c.read(func() {
		if c.gate.limits == nil {
			c.gate.limits = map[string]spec.RateLimit{}
		}
		c.gate.limits[action] = l
		c.gate.buckets = map[string]*bucket{}
	})
}

// ClearRateLimit takes a SetRateLimit, or the spec's limit, of the same action
// name or pattern back: what remains is the documented bucket.
func (c *Cloud) ClearRateLimit(action string) {
	c.read(func() {
		delete(c.gate.limits, action)
		c.gate.buckets = map[string]*bucket{}
	})
}

// SetThrottle turns the documented token buckets on or off; limits set for
// an action stand either way.
func (c *Cloud) SetThrottle(on bool) { c.read(func() { c.gate.throttle = on }) }
