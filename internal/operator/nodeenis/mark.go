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

// An operator may be suspended between reading the daemon's confirmation and calling EC2. It may
// resume after another operator has returned the address to the daemon. So an operator marks an
// address in spec.ipam.unassigning before it asks EC2 to unassign the address. The API server
// accepts that write only if the object has not changed since the operator read it. From then on,
// no operator removes the address from releasing. Whichever operator leads asks EC2 to unassign the
// address (eni.Config.Committed) until it is no longer assigned. A whole ENI is marked by its ID, in
// the write that removes its addresses from available.

var errUnmarked = errors.New("somebody else changed the object: this is no longer being released")

// marked reports whether the object has an entry in unassigning.
func marked(o *v1alpha1.NodeNetwork, text string) bool {
	return slices.Contains(o.Spec.IPAM.Unassigning, text)
}

// markedENI reports whether an operator marked an ENI: the same write removes the ENI's
// addresses from available.
func markedENI(o *v1alpha1.NodeNetwork, id string) bool {
	return marked(o, id) && !nodenetwork.HasAvailable(o, id)
}

// mayMark reports whether an address or prefix is marked, or this state of the object allows marking it.
func (h *handshake) mayMark(o *v1alpha1.NodeNetwork, p netip.Prefix) bool {
	return nodenetwork.Lists(o.Spec.IPAM.Unassigning, p) || h.handed[p] && confirmed(o, p)
}

// mayMarkENI works like mayMark for a whole ENI. The daemon must have confirmed all of its addresses, and
// nothing may use it.
func mayMarkENI(o *v1alpha1.NodeNetwork, id string) bool {
	for p, at := range nodenetwork.Available(o) {
		if at == id && !confirmed(o, p) {
			return false
		}
	}
	return !usesENI(o, id)
}

// enisToMark returns the ENIs that the fleet is about to detach and that may be marked, and the
// ENIs of the inventory that are marked already.
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

// retain copies an ENI's entries of available into s. It returns the entries that are releasing, and
// those that are marked themselves, not only by the ENI's ID.
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

// checkMarked returns an error if an inventory releases an assigned address or an attached ENI that
// is not marked in the object.
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

// Committed implements fleet.Node. It returns the marked addresses, prefixes and ENIs that the
// daemon still confirms.
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

// texts sorts addresses and prefixes, and formats them as in the object.
func texts(list []netip.Prefix) []string {
	slices.SortFunc(list, netip.Prefix.Compare)
	out := make([]string, len(list))
	for i, p := range list {
		out[i] = nodenetwork.Format(p)
	}
	return out
}
