package feed

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/policy/resolve"
)

// assignment is a node's report about a pod's addresses, which precedes the pod's status.
type assignment struct {
	uid    types.UID
	addrs  []netip.Addr
	status []netip.Addr // addresses in the status at that time: it is stale until it changes
}

// maxWaiting is the maximum number of unconfirmed addresses of a subscriber. Nobody waits for more: their nodes have given up by
// then, unless hundreds of thousands of pods start at once.
const maxWaiting = 4096

// waiting is an address that counts as known once a subscriber enforces a version.
type waiting struct {
	version uint64
	ticket  *ticket
}

// ticket counts the subscribers that do not enforce an address yet.
type ticket struct {
	left int
	done chan struct{}
}

func (t *ticket) confirmed() {
	if t.left--; t.left == 0 {
		close(t.done)
	}
}

// Assign sets the addresses of a pod that its node is about to start. The channel is closed once all nodes that have received the
// addresses enforce them, or have disconnected. Other pods of the node lose these addresses, whatever their status says, unless one of
// the pods has its address from a NIC. If the addresses are confirmed to be the node's, pods of other nodes lose them too: objects of
// pods that are gone may remain for long, for example after a node was lost. It returns an error if the pod is not on that node, or not
// known yet.
func (f *Feed) Assign(node string, name types.NamespacedName, uid types.UID, addrs []netip.Addr, confirmed bool) (<-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pod, there := resolve.PodOf(f.resolver, name)
	switch {
	case !there || pod.UID != uid:
		return nil, fmt.Errorf("pod %s with UID %s is not known", name, uid)
	case pod.Node != node:
		return nil, fmt.Errorf("pod %s is on node %q, not on %q", name, pod.Node, node)
	}
	t := &ticket{left: 1, done: make(chan struct{})}
	defer t.confirmed()
	concerned := map[*Subscriber]bool{}
	for other := range f.having(addrs) {
		before, _ := resolve.PodOf(f.resolver, other)
		if other == name || before.Node != node && !confirmed {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(before.Addrs), func(a netip.Addr) bool {
			return slices.Contains(addrs, a) && !f.ofNIC(name, a) && !f.ofNIC(other, a)
		})
		if len(left) < len(before.Addrs) {
			f.assign(before, left, concerned)
		}
	}
	if !slices.Equal(pod.Addrs, addrs) {
		f.assign(pod, addrs, concerned)
	}
	for s := range concerned {
		t.left++
		s.wait(t)
	}
	return t.done, nil
}

// having returns the pods with any of the addresses.
func (f *Feed) having(addrs []netip.Addr) map[types.NamespacedName]bool {
	all := map[types.NamespacedName]bool{}
	for _, a := range addrs {
		for _, name := range f.at[a] {
			all[name] = true
		}
	}
	return all
}

// index updates the index of addresses for a pod.
func (f *Feed) index(name types.NamespacedName, before, now []netip.Addr) {
	if slices.Equal(before, now) {
		return
	}
	for _, a := range before {
		left := slices.DeleteFunc(f.at[a], func(n types.NamespacedName) bool { return n == name })
		if f.at[a] = left; len(left) == 0 {
			delete(f.at, a)
		}
	}
	for _, a := range now {
		f.at[a] = append(f.at[a], name)
	}
}

func (f *Feed) ofNIC(name types.NamespacedName, a netip.Addr) bool {
	return f.OfNIC != nil && f.OfNIC(name, a)
}

// assign replaces the addresses in a pod's status, and notifies affected subscribers.
func (f *Feed) assign(p resolve.Pod, addrs []netip.Addr, concerned map[*Subscriber]bool) {
	a, has := f.assigned[p.NamespacedName]
	if !has {
		a.status = p.Addrs
	}
	a.uid, a.addrs = p.UID, addrs
	f.assigned[p.NamespacedName] = a
	p.Addrs = addrs
	for id := range f.setPod(p).Sets {
		for _, s := range f.watchers[id] {
			concerned[s] = true
		}
	}
}

// wait makes a ticket wait for the subscriber's next version.
func (s *Subscriber) wait(t *ticket) {
	if len(s.waiting) >= maxWaiting {
		s.waiting[0].ticket.confirmed()
		s.waiting = s.waiting[1:]
	}
	s.waiting = append(s.waiting, waiting{s.version + 1, t})
}

// Confirm records that the node enforces a version and all earlier ones.
func (s *Subscriber) Confirm(version uint64) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	n := 0
	for ; n < len(s.waiting) && s.waiting[n].version <= version; n++ {
		s.waiting[n].ticket.confirmed()
	}
	s.waiting = s.waiting[n:]
}
