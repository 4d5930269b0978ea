package podnics

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

// scope is what a shared failure holds up: new ports of a subnet or of a VPC, or all calls of it.
type scope struct {
	vpc    string
	kind   vpcport.Scope // ScopeSubnet, ScopeVPC or ScopeCaller
	subnet string        // IDs of the subnets that are asked for
}

// backoffs hold NICs up after failures that all of a scope would meet. After the wait one NIC tries,
// for all.
type backoffs struct {
	clock clock.Clock

	mu sync.Mutex // guards of
	of map[scope]*sharedBackoff
}

// sharedBackoff is that of one scope.
type sharedBackoff struct {
	failed  nicplan.Failure
	probe   types.UID // of the NIC that tries; empty: none does
	waiting map[types.NamespacedName]bool
}

// waiter is a NIC that a failure of a class held up.
type waiter struct {
	key   types.NamespacedName
	class vpcport.Class
}

func newBackoffs(c clock.Clock) *backoffs {
	return &backoffs{clock: c, of: map[scope]*sharedBackoff{}}
}

// scopesOf are those that a call of a NIC is in.
func scopesOf(vpc string, d nicplan.Desired, k nicplan.Kind) []scope {
	scopes := []scope{{vpc: vpc, kind: vpcport.ScopeCaller}}
	if k == nicplan.Create {
		scopes = append(scopes, scope{vpc: vpc, kind: vpcport.ScopeVPC}, scope{vpc: vpc, kind: vpcport.ScopeSubnet, subnet: subnetsOf(d)})
	}
	return scopes
}

// subnetsOf are the subnets of which a NIC is to get any address.
func subnetsOf(d nicplan.Desired) string {
	var ids []string
	for _, a := range d.Port.Addresses {
		if !a.IP.IsValid() {
			ids = append(ids, a.SubnetID)
		}
	}
	return strings.Join(ids, " ")
}

// pass reports whether a NIC may make a call, or which failure holds it up and until when.
func (b *backoffs) pass(uid types.UID, n *nic, d nicplan.Desired, k nicplan.Kind) (failed nicplan.Failure, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	var probes []*sharedBackoff
	for _, s := range scopesOf(n.vpc, d, k) {
		shared := b.of[s]
		if shared == nil {
			continue
		}
		if now.Before(shared.failed.Until) || shared.probe != "" && shared.probe != uid {
			shared.waiting[n.key] = true
			failed = shared.failed
			if !now.Before(failed.Until) {
				failed.Until = now.Add(lastPoll) // it is resumed once the one that tries has its reply
			}
			return failed, false
		}
		probes = append(probes, shared)
	}
	for _, shared := range probes {
		shared.probe = uid
	}
	return nicplan.Failure{}, true
}

// ended takes in the result of a NIC's call, for the NIC and for all of its scopes. It returns the
// NICs that need not wait any longer.
func (b *backoffs) ended(uid types.UID, n *nic, d nicplan.Desired, k nicplan.Kind, err error) (resumed []waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, class := b.clock.Now(), vpcport.ClassOf(err)
	failing, isShared := scopeOf(n.vpc, d, k, vpcport.PolicyOf(class))
	for _, s := range scopesOf(n.vpc, d, k) {
		shared := b.of[s]
		if shared == nil || err != nil && isShared && s == failing {
			continue
		}
		if shared.probe == uid || err == nil && k == nicplan.Create {
			resumed = append(resumed, b.lift(s)...)
		}
	}
	resumed = slices.DeleteFunc(resumed, func(w waiter) bool { return w.key == n.key })
	if err == nil {
		n.attempts.Failed = nicplan.Failure{}
		return resumed
	}
	fail(&n.attempts.Failed, now, class, err)
	if !isShared {
		return resumed
	}
	shared := b.of[failing]
	if shared == nil {
		shared = &sharedBackoff{waiting: map[types.NamespacedName]bool{}}
		b.of[failing] = shared
	}
	if shared.probe == uid || now.After(shared.failed.Until) {
		fail(&shared.failed, now, class, err)
		shared.probe = ""
	}
	shared.waiting[n.key] = true
	n.attempts.Failed.Until = shared.failed.Until
	return resumed
}

// scopeOf is the scope of a failure, if it is not the NIC's alone.
func scopeOf(vpc string, d nicplan.Desired, k nicplan.Kind, p vpcport.Policy) (scope, bool) {
	switch p.Scope {
	case vpcport.ScopeCaller:
		return scope{vpc: vpc, kind: p.Scope}, p.First > 0
	case vpcport.ScopeVPC:
		return scope{vpc: vpc, kind: p.Scope}, k == nicplan.Create
	case vpcport.ScopeSubnet:
		return scope{vpc: vpc, kind: p.Scope, subnet: subnetsOf(d)}, k == nicplan.Create
	default:
		return scope{}, false
	}
}

// fail notes a failure. The wait doubles while failures are of one class.
func fail(f *nicplan.Failure, now time.Time, class vpcport.Class, err error) {
	if f.Class != class {
		f.Times = 0
	}
	policy := vpcport.PolicyOf(class)
	first, last := policy.First, policy.Last
	n := f.Times
	if first == 0 {
		n -= freely
		first, last = time.Second, 30*time.Second
	}
	f.Class, f.Message = class, err.Error()
	f.Times++
	f.Until = now
	if n >= 0 {
		f.Until = now.Add(retry.Jitter(retry.Delay(first, last, n)))
	}
}

// lift removes a backoff, and returns the NICs that it held up. b.mu is held.
func (b *backoffs) lift(s scope) (resumed []waiter) {
	shared := b.of[s]
	if shared == nil {
		return nil
	}
	delete(b.of, s)
	for key := range shared.waiting {
		resumed = append(resumed, waiter{key, shared.failed.Class})
	}
	return resumed
}

// open removes all backoffs of a VPC whose object or provider has changed.
func (b *backoffs) open(vpc string) (resumed []waiter) {
	return b.liftAll(vpc, func(scope, vpcport.Class) bool { return true })
}

// room removes the backoffs of new ports of a VPC after one of its ports was deleted, but for those
// that somebody has to end.
func (b *backoffs) room(vpc string) (resumed []waiter) {
	return b.liftAll(vpc, func(s scope, class vpcport.Class) bool {
		return s.kind != vpcport.ScopeCaller && !vpcport.PolicyOf(class).Edit
	})
}

func (b *backoffs) liftAll(vpc string, is func(scope, vpcport.Class) bool) (resumed []waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s, shared := range b.of {
		if s.vpc == vpc && is(s, shared.failed.Class) {
			resumed = append(resumed, b.lift(s)...)
		}
	}
	return resumed
}

// forget drops a NIC. If it was to try for others, another one does.
func (b *backoffs) forget(uid types.UID, key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, shared := range b.of {
		delete(shared.waiting, key)
		if shared.probe == uid {
			shared.probe = ""
		}
	}
}
