package nodenetwork

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// An operator may be stopped between its look at what the daemon confirmed and
// its call to EC2, and go on when another has given the address back to the
// daemon. So what is handed to EC2 is marked first, in spec.ipam.unassigning, by
// a write that the API server takes only if the object still is as it was when
// that was decided on. From then on no operator takes it off releasing, and
// whoever works for the node asks EC2 to take it (eni.Config.Committed), until it
// is not assigned any more. A whole ENI is marked by its ID, in the write that
// takes its addresses out of available.

var errUnmarked = errors.New("somebody else changed it: what was to be given back is not released any more")

// marked tells whether the object has an entry in unassigning. n.mu is held.
func (n *node) marked(text string) bool { return slices.Contains(n.obj.Spec.IPAM.Unassigning, text) }

// leaves tells whether something is with EC2, or about to be. n.mu is held.
func (n *node) leaves(p netip.Prefix) bool { return n.handed[p] || n.marked(nodenetwork.Format(p)) }

// mayMark tells whether something is marked, or may be in the state of the
// object at hand. n.mu is held.
func (n *node) mayMark(p netip.Prefix) bool {
	return n.marked(nodenetwork.Format(p)) || n.handed[p] && n.confirmed(p)
}

// mayMarkENI is mayMark of a whole ENI: all of it is confirmed. n.mu is held.
func (n *node) mayMarkENI(id string) bool {
	for _, use := range n.obj.Status.IPAM.Used {
		if use.Resource == id {
			return false
		}
	}
	for text, at := range n.obj.Spec.IPAM.Available {
		p, err := nodenetwork.Parse(text)
		if err == nil && at.Resource == id && !n.confirmed(p) {
			return false
		}
	}
	return true
}

// markedENI tells whether an ENI is marked by an operator, which takes its
// addresses out of available with the same write. n.mu is held.
func (n *node) markedENI(id string) bool {
	return n.marked(id) && !nodenetwork.HasAvailable(n.obj, id)
}

// markedENIs are the ENIs to be marked: those about to be detached, and those
// that were marked and are attached still. n.mu is held.
func (n *node) markedENIs() []string {
	out := map[string]bool{}
	for id := range n.detaching {
		if n.mayMarkENI(id) {
			out[id] = true
		}
	}
	for i := range n.inv.ENIs {
		if id := n.inv.ENIs[i].ID; n.markedENI(id) {
			out[id] = true
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// things are those of the inventory but for ENIs that are marked. n.mu is held.
func (n *node) things() map[netip.Prefix]string {
	out := things(n.inv)
	maps.DeleteFunc(out, func(_ netip.Prefix, id string) bool { return n.markedENI(id) })
	return out
}

// keep leaves what is available of an ENI as it is, and tells which of it is
// releasing, and marked by itself. n.mu is held.
func (n *node) keep(s *v1alpha1.IPAMSpec, id string) (leaving, asked []netip.Prefix) {
	for text, at := range n.obj.Spec.IPAM.Available {
		p, err := nodenetwork.Parse(text)
		if err != nil || at.Resource != id {
			continue
		}
		s.Available[text] = at
		if slices.Contains(n.obj.Spec.IPAM.Releasing, text) {
			leaving = append(leaving, p)
		}
		if n.marked(text) {
			asked = append(asked, p)
		}
	}
	return leaving, asked
}

// recorded tells, by an error, whether all that an inventory has on its way out
// is marked in the object.
func (n *node) recorded(inv *eni.Inventory) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	assigned := things(inv)
	for _, r := range inv.Releasing {
		if _, ok := assigned[r.Prefix]; ok && !n.marked(nodenetwork.Format(r.Prefix)) {
			return fmt.Errorf("%s: %w", nodenetwork.Format(r.Prefix), errUnmarked)
		}
	}
	for _, l := range inv.Leaving {
		if l.Attached && !n.markedENI(l.ENI) {
			return fmt.Errorf("%s: %w", l.ENI, errUnmarked)
		}
	}
	return nil
}

// Committed implements fleet.Node: what is marked and the daemon confirms still.
func (n *node) Committed() (out []eni.Release) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, text := range n.obj.Spec.IPAM.Unassigning {
		p, err := nodenetwork.Parse(text)
		switch {
		case strings.HasPrefix(text, "eni-"):
			if n.markedENI(text) && n.mayMarkENI(text) {
				out = append(out, eni.Release{ENI: text})
			}
		case err == nil && slices.Contains(n.obj.Status.IPAM.Released, text) && !uses(n.obj, p):
			out = append(out, eni.Release{ENI: n.obj.Spec.IPAM.Available[text].Resource, Prefix: p})
		}
	}
	return out
}

// texts are things as the object has them, in order.
func texts(list []netip.Prefix) []string {
	slices.SortFunc(list, netip.Prefix.Compare)
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = nodenetwork.Format(p)
	}
	return out
}
