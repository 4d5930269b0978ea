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

// An operator may be stopped between its look at what the daemon confirmed and
// its call to EC2, and go on when another has given the address back to the
// daemon. So what is handed to EC2 is marked first, in spec.ipam.unassigning, by
// a write that the API server takes only if the object still is as it was when
// that was decided on. From then on no operator takes it off releasing, and
// whoever works for the node asks EC2 to take it (eni.Config.Committed), until it
// is not assigned any more. A whole ENI is marked by its ID, in the write that
// takes its addresses out of available.

var errUnmarked = errors.New("somebody else changed it: what was to be given back is not released any more")

// marked tells whether the object has an entry in unassigning.
func marked(o *v1alpha1.NodeNetwork, text string) bool {
	return slices.Contains(o.Spec.IPAM.Unassigning, text)
}

// markedENI tells whether an ENI is marked by an operator, which takes its
// addresses out of available with the same write.
func markedENI(o *v1alpha1.NodeNetwork, id string) bool {
	return marked(o, id) && !nodenetwork.HasAvailable(o, id)
}

// mayMark tells whether something is marked, or may be in this state of the object.
func (h *handshake) mayMark(o *v1alpha1.NodeNetwork, p netip.Prefix) bool {
	return marked(o, nodenetwork.Format(p)) || h.handed[p] && confirmed(o, p)
}

// mayMarkENI is mayMark of a whole ENI: all of it is confirmed.
func mayMarkENI(o *v1alpha1.NodeNetwork, id string) bool {
	for p, at := range nodenetwork.Available(o) {
		if at == id && !confirmed(o, p) {
			return false
		}
	}
	return !usesENI(o, id)
}

// enisToMark are the ENIs that are about to be detached, and those that were
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

// retain copies what is available of an ENI into s as it is, and returns what of
// it is releasing, and what is marked by itself.
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

// checkMarked is an error unless all that an inventory has on its way back is
// marked in the object.
func (n *node) checkMarked(inv *eni.Inventory) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	assigned := podAddresses(inv)
	for _, r := range inv.Releasing {
		if _, ok := assigned[r.Prefix]; ok && !marked(n.obj, nodenetwork.Format(r.Prefix)) {
			return fmt.Errorf("%s: %w", nodenetwork.Format(r.Prefix), errUnmarked)
		}
	}
	for _, l := range inv.Leaving {
		if l.Attached && !markedENI(n.obj, l.ENI) {
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
			if markedENI(n.obj, text) && mayMarkENI(n.obj, text) {
				out = append(out, eni.Release{ENI: text})
			}
		case err == nil && slices.Contains(n.obj.Status.IPAM.Released, text) && !uses(n.obj, p):
			out = append(out, eni.Release{ENI: n.obj.Spec.IPAM.Available[text].Resource, Prefix: p})
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
