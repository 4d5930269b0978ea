package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/node/introspect"
)

// addressesOf returns the valid addresses in the pod's status.
func addressesOf(f Facts) (out []netip.Addr) {
	for _, ip := range f.Pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, a)
		}
	}
	if a, err := netip.ParseAddr(f.Pod.Status.PodIP); err == nil && len(out) == 0 {
		out = append(out, a)
	}
	return out
}

// ready returns the pod's attachments that are completely set up.
func ready(f Facts) (out []introspect.Attachment) {
	if f.View.Value == nil {
		return nil
	}
	for _, a := range f.View.Value.Attachments {
		if a.State == "ready" {
			out = append(out, a)
		}
	}
	return out
}

func has(a introspect.Attachment, addr netip.Addr) bool {
	return a.Address == addr || a.IPv6 == addr || slices.ContainsFunc(a.NICs, func(n introspect.NIC) bool {
		return slices.ContainsFunc(n.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr })
	})
}

// hasAddress diagnoses a pod that has an address in its status.
func hasAddress(f Facts) *Diagnosis {
	mine := addressesOf(f)
	text := list(mine)
	switch {
	case f.Daemon.Absent():
		return fine(Unchecked, fmt.Sprintf("The pod has %s. Its path could not be checked: no berthd pod runs on node %s.", text, f.Pod.Spec.NodeName))
	case f.View.Value == nil:
		return fine(Unchecked, fmt.Sprintf("The pod has %s. Its path could not be checked: %s", text, f.View.Unread))
	}
	if f.mode() == EgressMode {
		return added(f, text)
	}
	attachments := ready(f)
	if len(attachments) == 0 {
		return trouble(NotOfBerth, fmt.Sprintf("The pod has %s, which berthd on node %s did not assign.", text, f.Pod.Spec.NodeName),
			"Look on the node for a network configuration of another plugin that sorts before Berth's (/etc/cni/net.d); then delete the pod.", seeNode)
	}
	holds := func(a netip.Addr) bool {
		return slices.ContainsFunc(attachments, func(at introspect.Attachment) bool { return has(at, a) })
	}
	if i := slices.IndexFunc(mine, func(a netip.Addr) bool { return !holds(a) }); i >= 0 {
		return trouble(AddressesDisagree, fmt.Sprintf("The pod's status has %s, but its node has %s for it.", mine[i], list(held(attachments))),
			"This is normal for a moment after a sandbox was replaced. If it persists, check the logs of the kubelet and berthd, and delete the pod.", seePackets)
	}
	if d := cmp.Or(broken(attachments), unchecked(attachments, text)); d != nil {
		return d
	}
	if d := policiesOf(f); d != nil {
		return d
	}
	return fine(Works, fmt.Sprintf("The pod has %s, and its link, addresses, neighbours and routes on node %s are intact.", text, f.Pod.Spec.NodeName))
}

// added diagnoses a pod whose addresses another network assigned, and Berth's additions to it.
func added(f Facts, text string) *Diagnosis {
	attachments := f.View.Value.Attachments
	if len(attachments) == 0 {
		return fine(Works, fmt.Sprintf("The pod has %s, which another network assigned; berthd on node %s has added nothing.", text, f.Pod.Spec.NodeName))
	}
	if d := cmp.Or(broken(ready(f)), unchecked(attachments, text)); d != nil {
		return d
	}
	return fine(Works, fmt.Sprintf("The pod has %s, which another network assigned; what Berth added on node %s is intact.", text, f.Pod.Spec.NodeName))
}

// attached diagnoses a pod whose node has assigned an address that is not in the pod's status yet.
func attached(f Facts) *Diagnosis {
	attachments := ready(f)
	if len(attachments) == 0 {
		return nil
	}
	if d := broken(attachments); d != nil {
		return d
	}
	return fine(Starting, fmt.Sprintf("The pod got %s; its kubelet has not reported it in the pod's status yet.", list(held(attachments))))
}

// broken diagnoses attachments whose kernel state differs from the desired state.
func broken(attachments []introspect.Attachment) *Diagnosis {
	for _, a := range attachments {
		if a.Checked && a.Fault != "" {
			return trouble(PathBroken, fmt.Sprintf("The path to %s is broken on its node: %s", list(held([]introspect.Attachment{a})), a.Fault),
				"berthd repairs changes that it sees. If this stays or returns, other software changes it: a network manager, another network plugin, or the pod itself. Otherwise delete the pod.", seePackets)
		}
	}
	return nil
}

// unchecked diagnoses attachments of which at least one was not compared with the kernel.
func unchecked(attachments []introspect.Attachment, text string) *Diagnosis {
	for _, a := range attachments {
		if !a.Checked {
			return fine(Unchecked, fmt.Sprintf("The pod has %s. Its path was not checked: %s", text, cmp.Or(a.Fault, "it is "+a.State+" on its node")))
		}
	}
	return nil
}

func held(attachments []introspect.Attachment) (out []netip.Addr) {
	for _, a := range attachments {
		for _, addr := range []netip.Addr{a.Address, a.IPv6} {
			if addr.IsValid() {
				out = append(out, addr)
			}
		}
		for _, n := range a.NICs {
			for _, p := range n.Addresses {
				if !slices.Contains(out, p.Addr()) {
					out = append(out, p.Addr())
				}
			}
		}
	}
	return out
}

func list(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, " and ")
}
