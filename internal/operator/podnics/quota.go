package podnics

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berthnet/berth/api/v1alpha1"
)

// wakes is how many NICs that wait for a place are reconciled when one is free. More would be
// as many as somebody likes to make.
const wakes = 16

// tenant is a namespace in a VPC.
type tenant struct{ vpc, namespace string }

// places are the NICs of a tenant that count to its limit.
type places struct {
	listed  bool                          // PodNICs of before this process are among the NICs that are known
	holders map[types.UID]bool            // NICs that may have a port
	waiting map[types.NamespacedName]bool // NICs that found no place
}

// has tells whether a NIC has a port, or is to get one in this moment.
func (n *nic) has() bool {
	return n.taken || n.have.Recorded != "" || !n.given && n.have.Port != nil
}

// mayHave tells whether a NIC has a port or, as far as it is known, may have one.
func (n *nic) mayHave() bool {
	return n.has() || n.have.Unclear && (!n.given || !n.have.Looked)
}

// holds is mayHave at a moment: what was asked for long ago, and was not seen, is not there. b.mu is held.
func (b *book) holds(n *nic) bool {
	return n.has() || n.mayHave() && (!n.have.Looked || !b.late(n, b.clock.Now()))
}

// of are the places of a NIC's tenant. b.mu is held.
func (b *book) of(n *nic) *places {
	t := tenant{n.vpc, n.key.Namespace}
	p := b.tenants[t]
	if p == nil {
		p = &places{holders: map[types.UID]bool{}, waiting: map[types.NamespacedName]bool{}}
		b.tenants[t] = p
	}
	return p
}

// count notes whether a NIC may have a port. b.mu is held.
func (b *book) count(uid types.UID, n *nic) {
	if !n.mayHave() {
		b.vacate(uid, n)
		return
	}
	b.of(n).holders[uid] = true
}

// uncount forgets a NIC. b.mu is held.
func (b *book) uncount(uid types.UID, n *nic) {
	if n == nil {
		return
	}
	p := b.of(n)
	delete(p.waiting, n.key)
	b.vacate(uid, n)
	if n.woken {
		b.wakeWaiting(p, 1)
	}
	if len(p.holders)+len(p.waiting) == 0 {
		delete(b.tenants, tenant{n.vpc, n.key.Namespace})
	}
}

// vacate gives up a NIC's place, and has some reconciled that wait for one. b.mu is held.
func (b *book) vacate(uid types.UID, n *nic) {
	p := b.of(n)
	if !p.holders[uid] {
		return
	}
	delete(p.holders, uid)
	b.wakeWaiting(p, wakes)
}

// wakeWaiting has as many NICs reconciled, of those that wait for a place. b.mu is held.
func (b *book) wakeWaiting(p *places, most int) {
	for key := range p.waiting {
		if most--; most < 0 {
			return
		}
		delete(p.waiting, key)
		if n := b.nics[b.uids[key]]; n != nil {
			n.woken = true
		}
		b.again(key)
	}
}

// passOn wakes the next if a NIC was woken for a place and did not ask for it: it is over, or refused.
func (b *book) passOn(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := b.nics[uid]; n != nil && n.woken {
		n.woken = false
		b.wakeWaiting(b.of(n), 1)
	}
}

// enter gives a NIC that is to get a port a place among those of its namespace. It tells whether it has
// one. What an operator before this one may have asked for holds a place until it is known that nothing came of it.
func (c *Controller) enter(ctx context.Context, s *scene) bool {
	if !c.listTenant(ctx, s.o) || !c.book.enter(s.o.UID, s.limits.Most) {
		s.crowded = s.limits.Full(s.o.Spec.VPC)
		return false
	}
	return true
}

// listTenant has the book know all PodNICs of a tenant, ports of which a process before this one may have
// asked for.
func (c *Controller) listTenant(ctx context.Context, o *v1alpha1.PodNIC) bool {
	if c.book.isListed(o.UID) {
		return true
	}
	list := &v1alpha1.PodNICList{}
	if err := c.client.List(ctx, list, client.InNamespace(o.Namespace), client.MatchingFields{ByVPC: o.Spec.VPC}, client.UnsafeDisableDeepCopy); err != nil {
		return false
	}
	for i := range list.Items {
		c.book.addListed(&list.Items[i], controllerutil.ContainsFinalizer(&list.Items[i], v1alpha1.FinalizerPort))
	}
	c.book.setListed(o.UID)
	return true
}

func (b *book) isListed(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.nics[uid]
	return n != nil && b.of(n).listed
}

func (b *book) setListed(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := b.nics[uid]; n != nil {
		b.of(n).listed = true
	}
}

// enter gives a NIC one of most places of its namespace, and tells whether it has one. One that has a port
// already keeps it.
func (b *book) enter(uid types.UID, most int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.nics[uid]
	if n == nil {
		return false
	}
	p := b.of(n)
	n.woken = false
	if !n.has() && !b.isRoom(p, uid, most) {
		p.waiting[n.key] = true
		return false
	}
	n.taken = true
	p.holders[uid] = true
	b.wakeWaiting(p, min(wakes, most-len(p.holders))) // isRoom may have found several places
	return true
}

// isRoom tells whether fewer NICs than most hold a place beside one. b.mu is held.
func (b *book) isRoom(p *places, beside types.UID, most int) bool {
	if len(p.holders) < most {
		return true
	}
	others := 0
	for uid := range p.holders {
		if !b.holds(b.nics[uid]) {
			delete(p.holders, uid)
		} else if uid != beside {
			if others++; others >= most {
				break
			}
		}
	}
	return others < most
}

// leave gives up the place of a NIC that gets no port after all.
func (b *book) leave(uid types.UID) {
	b.edit(uid, func(n *nic) { n.taken = false })
}

// settles is how long a NIC without a place waits until it looks again by itself: until it is known which
// ports a process before this one has asked for, or for long.
func (b *book) settles(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if left := b.began.Add(b.settle).Sub(now); left > 0 {
		return left
	}
	return 10 * time.Minute
}
