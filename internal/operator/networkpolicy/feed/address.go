package feed

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// assignment is what a node said about a pod before the pod's status does.
type assignment struct {
	uid   types.UID
	addrs []netip.Addr
}

// waiting is an address that counts as known once a subscriber enforces a version.
type waiting struct {
	version uint64
	ticket  *ticket
}

// ticket counts who does not enforce something yet.
type ticket struct {
	left int
	done chan struct{}
}

func (t *ticket) confirmed() {
	if t.left--; t.left == 0 {
		close(t.done)
	}
}

// Assign takes in the addresses of a pod that its node is about to start. The channel is closed once all nodes that were told
// of them enforce it, or have gone. The error says that the pod is not one of that node, or not known yet.
func (f *Feed) Assign(node string, name types.NamespacedName, uid types.UID, addrs []netip.Addr) (<-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pod, _, there := f.resolver.Policies(name)
	switch {
	case !there || pod.UID != uid:
		return nil, fmt.Errorf("pod %s with UID %s is not known", name, uid)
	case pod.Node != node:
		return nil, fmt.Errorf("pod %s is on node %q, not on %q", name, pod.Node, node)
	}
	t := &ticket{left: 1, done: make(chan struct{})}
	defer t.confirmed()
	if slices.Equal(pod.Addrs, addrs) {
		return t.done, nil
	}
	f.assigned[name] = assignment{uid, addrs}
	pod.Addrs = addrs
	concerned := map[*Subscriber]bool{}
	for id := range f.setPod(pod).Sets {
		for _, s := range f.watchers[id] {
			concerned[s] = true
		}
	}
	for s := range concerned {
		t.left++
		s.waiting = append(s.waiting, waiting{s.version + 1, t})
	}
	return t.done, nil
}

// Confirm notes that the node enforces a version and all before.
func (s *Subscriber) Confirm(version uint64) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	n := 0
	for ; n < len(s.waiting) && s.waiting[n].version <= version; n++ {
		s.waiting[n].ticket.confirmed()
	}
	s.waiting = s.waiting[n:]
}
