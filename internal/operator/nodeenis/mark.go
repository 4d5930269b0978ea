package nodeenis

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// An operator may be suspended after it has seen what the daemon confirmed and before its call
// to EC2, and go on after another operator has returned the address to the daemon. So an address
// is marked in spec.ipam.unassigning before EC2 is asked to unassign it, by a write that the API
// server accepts only if the object is as it was for that decision. From then on no operator takes
// the address off releasing, and whichever operator leads asks EC2 to unassign it
// (eni.Config.Committed), until it is not assigned any more. A whole ENI is marked by its ID, in
// the write that takes its addresses out of available.

var errUnmarked = errors.New("somebody else changed the object: this is not being released any more")

// marked reports whether the object has an entry in unassigning.
func marked(o *v1alpha1.NodeNetwork, text string) bool {
	return slices.Contains(o.Spec.IPAM.Unassigning, text)
}

// markedENI reports whether an operator marked an ENI: it takes the ENI's
// addresses out of available with the same write.
func markedENI(o *v1alpha1.NodeNetwork, id string) bool {
	return marked(o, id) && !nodenetwork.HasAvailable(o, id)
}

// mayMark reports whether an address or prefix is marked, or may be in this state of the object.
func (h *handshake) mayMark(o *v1alpha1.NodeNetwork, p netip.Prefix) bool {
	return marked(o, nodenetwork.Format(p)) || h.handed[p] && confirmed(o, p)
}

// mayMarkENI is mayMark of a whole ENI: all that it has must be confirmed.
func mayMarkENI(o *v1alpha1.NodeNetwork, id string) bool {
	for p, at := range nodenetwork.Available(o) {
		if at == id && !confirmed(o, p) {
			return false
		}
	}
	return !usesENI(o, id)
}

// enisToMark are the ENIs that the fleet is about to detach, and those that were
// marked and are still attached.
func (h *handshake) enisToMark(o *v1alpha1.NodeNetwork, inv *eni.Inventory) []string {
	out := map[string]bool{}
	for id := range h.detaching {
		if mayMarkENI(o, id) {
			out[id] = true
		}
	}
	for i := range inv.ENIs {
		if id := inv.ENIs[i].ID; markedENI(o, id) {
			out[id] = true
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// retain copies what is available of an ENI into s, and returns what of it is releasing, and
// what is marked on its own.
func retain(s *v1alpha1.IPAMSpec, o *v1alpha1.NodeNetwork, id string) (releasing, unassigning []netip.Prefix) {
	for p, at := range nodenetwork.Available(o) {
		if at != id {
			continue
		}
		text := nodenetwork.Format(p)
		s.Available[text] = o.Spec.IPAM.Available[text]
		if slices.Contains(o.Spec.IPAM.Releasing, text) {
			releasing = append(releasing, p)
		}
		if marked(o, text) {
			unassigning = append(unassigning, p)
		}
	}
	return releasing, unassigning
}

// checkMarked is an error unless all that an inventory releases is marked in the object.
func (s *state) checkMarked(inv *eni.Inventory) error {
	assigned := podAddresses(inv)
	for _, r := range inv.Releasing {
		if _, ok := assigned[r.Prefix]; ok && !marked(s.obj, nodenetwork.Format(r.Prefix)) {
			return fmt.Errorf("%s: %w", nodenetwork.Format(r.Prefix), errUnmarked)
		}
	}
	for _, l := range inv.Leaving {
		if l.Attached && !markedENI(s.obj, l.ENI) {
			return fmt.Errorf("%s: %w", l.ENI, errUnmarked)
		}
	}
	return nil
}

// Committed implements fleet.Node: what is marked, and still confirmed by the daemon.
func (n *node) Committed() (out []eni.Release) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := n.state.obj
	for _, text := range o.Spec.IPAM.Unassigning {
		p, err := nodenetwork.Parse(text)
		switch {
		case strings.HasPrefix(text, "eni-"):
			if markedENI(o, text) && mayMarkENI(o, text) {
				out = append(out, eni.Release{ENI: text})
			}
		case err == nil && slices.Contains(o.Status.IPAM.Released, text) && !uses(o, p):
			out = append(out, eni.Release{ENI: o.Spec.IPAM.Available[text].Resource, Prefix: p})
		}
	}
	return out
}

// texts are addresses and prefixes as the object has them, in order.
func texts(list []netip.Prefix) []string {
	slices.SortFunc(list, netip.Prefix.Compare)
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = nodenetwork.Format(p)
	}
	return out
}
