package podnics

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

// failure is how the last call went.
type failure struct {
	class   vpcport.Class
	message string // empty: it did not fail
	reason  string // of the condition, where it is not the class's
	times   int
	until   time.Time
}

// gateKey is what a gate holds up: new ports of a subnet or of a VPC, or all calls of it.
type gateKey struct {
	vpc    string
	scope  vpcport.Scope // ScopeSubnet, ScopeVPC or ScopeCaller
	subnet string        // IDs of the subnets that are asked for
}

// gate holds NICs up after a failure that all of them would meet. After the wait one of
// them asks, for all.
type gate struct {
	failure
	probe   types.UID // of the NIC that asks; empty: none does
	waiting map[types.NamespacedName]bool
}

// gatesOf are those that a call of a NIC meets.
func gatesOf(vpc string, w nicplan.Want, k nicplan.Kind) []gateKey {
	keys := []gateKey{{vpc: vpc, scope: vpcport.ScopeCaller}}
	if k == nicplan.Create {
		keys = append(keys, gateKey{vpc: vpc, scope: vpcport.ScopeVPC}, gateKey{vpc: vpc, scope: vpcport.ScopeSubnet, subnet: subnetsOf(w)})
	}
	return keys
}

// subnetsOf are the subnets of which a NIC is to get any address.
func subnetsOf(w nicplan.Want) string {
	var ids []string
	for _, a := range w.Addresses {
		if !a.IP.IsValid() {
			ids = append(ids, a.SubnetID)
		}
	}
	return strings.Join(ids, " ")
}

// pass takes a NIC through its gates, and marks it busy; or says which failure holds it
// up, and until when.
func (b *book) pass(uid types.UID, w nicplan.Want, k nicplan.Kind) (held failure, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, now := b.nics[uid], b.clock.Now()
	if n == nil {
		return failure{}, false
	}
	var probes []*gate
	for _, key := range gatesOf(n.vpc, w, k) {
		g := b.gates[key]
		if g == nil {
			continue
		}
		if now.Before(g.until) || g.probe != "" && g.probe != uid {
			g.waiting[n.key] = true
			held = g.failure
			if !now.Before(held.until) {
				held.until = now.Add(lastPoll) // it is told when the one that asks has its answer
			}
			return held, false
		}
		probes = append(probes, g)
	}
	for _, g := range probes {
		g.probe = uid
	}
	n.busy, n.called = true, now
	return failure{}, true
}

// settled is what a call about a NIC came to, for it and for its gates. It returns the
// NICs that need not wait any longer. b.mu is held.
func (b *book) settled(uid types.UID, n *nic, w nicplan.Want, k nicplan.Kind, err error) (free []types.NamespacedName) {
	now := b.clock.Now()
	class := vpcport.ClassOf(err)
	policy := vpcport.PolicyOf(class)
	shut, scoped := scopeOf(n.vpc, w, k, policy)
	for _, key := range gatesOf(n.vpc, w, k) {
		g := b.gates[key]
		if g == nil || err != nil && scoped && key == shut {
			continue
		}
		if g.probe == uid || err == nil && k == nicplan.Create {
			free = append(free, b.lift(key)...)
		}
	}
	n.busy, n.touched = false, now
	n.taken = n.taken && err == nil && k != nicplan.Delete
	if err == nil {
		n.failed = failure{}
		return free
	}
	n.failed.fail(now, class, err)
	if !scoped {
		return free
	}
	g := b.gates[shut]
	if g == nil {
		g = &gate{waiting: map[types.NamespacedName]bool{}}
		b.gates[shut] = g
	}
	if g.probe == uid || now.After(g.until) {
		g.fail(now, class, err)
		g.probe = ""
	}
	g.waiting[n.key] = true
	n.failed.until = g.until
	return free
}

// scopeOf is the gate that a failure shuts, if it is not the NIC's alone.
func scopeOf(vpc string, w nicplan.Want, k nicplan.Kind, p vpcport.Policy) (gateKey, bool) {
	switch p.Scope {
	case vpcport.ScopeCaller:
		return gateKey{vpc: vpc, scope: p.Scope}, p.First > 0
	case vpcport.ScopeVPC:
		return gateKey{vpc: vpc, scope: p.Scope}, k == nicplan.Create
	case vpcport.ScopeSubnet:
		return gateKey{vpc: vpc, scope: p.Scope, subnet: subnetsOf(w)}, k == nicplan.Create
	default:
		return gateKey{}, false
	}
}

// fail notes a failure; the wait doubles as long as it is of one class.
func (f *failure) fail(now time.Time, class vpcport.Class, err error) {
	if f.class != class {
		f.times = 0
	}
	policy := vpcport.PolicyOf(class)
	first, last := policy.First, policy.Last
	n := f.times
	if first == 0 {
		n -= freely
		first, last = time.Second, 30*time.Second
	}
	f.class, f.message = class, err.Error()
	f.times++
	f.until = now
	if n >= 0 {
		f.until = now.Add(retry.Jitter(retry.Delay(first, last, n)))
	}
}

// lift removes a gate, and returns whom it held up. b.mu is held.
func (b *book) lift(key gateKey) (free []types.NamespacedName) {
	g := b.gates[key]
	if g == nil {
		return nil
	}
	delete(b.gates, key)
	for waits := range g.waiting {
		free = append(free, waits)
	}
	for _, k := range free {
		if n := b.nics[b.uids[k]]; n != nil && n.failed.class == g.class {
			n.failed.until = time.Time{}
		}
	}
	return free
}

// open removes all gates of a VPC, whose object or provider is another by now.
func (b *book) open(vpc string) (free []types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.gates {
		if key.vpc == vpc {
			free = append(free, b.lift(key)...)
		}
	}
	return free
}

// freed is room for whoever does not hold the lock.
func (b *book) freed(vpc string) []types.NamespacedName {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.room(vpc)
}

// room removes the gates of new ports of a VPC one of whose ports is gone. b.mu is held.
func (b *book) room(vpc string) (free []types.NamespacedName) {
	for key, g := range b.gates {
		if key.vpc == vpc && key.scope != vpcport.ScopeCaller && !vpcport.PolicyOf(g.class).Edit {
			free = append(free, b.lift(key)...)
		}
	}
	return free
}
