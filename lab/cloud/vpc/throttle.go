package vpc

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/lab/cloud/spec"
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

// Documented buckets (EC2 Developer Guide, "Request throttling for the Amazon EC2 API", request token
// limits).
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

// throttle holds the token buckets of the actions.
type throttle struct {
	documented bool                      // the documented buckets are enabled
	spec       map[string]spec.RateLimit // limits of the spec, by action pattern
	limits     map[string]spec.RateLimit // overrides of these limits, by action pattern
	buckets    map[string]*bucket
}

func newThrottle(s spec.Spec) throttle {
	limits := maps.Clone(s.RateLimits)
	if limits == nil {
		limits = map[string]spec.RateLimit{}
	}
	return throttle{documented: s.Throttle == "documented", spec: s.RateLimits, limits: limits, buckets: map[string]*bucket{}}
}

// take takes a token from the call's bucket, and reports whether there was one.
func (t *throttle) take(call Call, now time.Time) bool {
	limit, name, ok := t.limitOf(call)
	if !ok {
		return true
	}
	b := t.buckets[name]
	if b == nil {
		b = &bucket{limit, limit.Bucket, now}
		t.buckets[name] = b
	}
	return b.take(now)
}

// limitOf returns the limit of a call: that of its action, of the longest pattern that covers it (the last
// by name among equally long ones), or the documented one. Each action has its own bucket, unless the
// limit of a pattern is shared.
func (t *throttle) limitOf(call Call) (l spec.RateLimit, name string, ok bool) {
	var best []string
	for p := range t.limits {
		if Covers(p, call.Action) {
			best = append(best, p)
		}
	}
	if len(best) > 0 {
		pattern := slices.MaxFunc(best, func(a, b string) int { return narrower(a, b, call.Action) })
		if l = t.limits[pattern]; l.Shared {
			return l, pattern, true
		}
		return l, call.Action, true
	}
	if !t.documented {
		return l, "", false
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

// narrower orders patterns that cover an action by how specific they are.
func narrower(a, b, action string) int {
	exact := func(p string) int {
		if strings.EqualFold(p, action) {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(exact(a), exact(b)), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// SetRateLimit sets the token bucket of an action (name or pattern) and fills it. Each action of a pattern
// has its own bucket, unless the limit is Shared.
func (api *API) SetRateLimit(action string, l spec.RateLimit) {
	api.world.read(func() {
		api.throttle.limits[action] = l
		clear(api.throttle.buckets)
	})
}

// ClearRateLimit reverts a SetRateLimit of the same action name or pattern to the limit of the spec or the
// documented one.
func (api *API) ClearRateLimit(action string) {
	api.world.read(func() {
		delete(api.throttle.limits, action)
		if l, ok := api.throttle.spec[action]; ok {
			api.throttle.limits[action] = l
		}
		clear(api.throttle.buckets)
	})
}

// SetThrottle enables or disables the documented token buckets. Other limits stay enabled.
func (api *API) SetThrottle(on bool) { api.world.read(func() { api.throttle.documented = on }) }
