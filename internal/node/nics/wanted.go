package nics

import (
	"slices"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
)

// desired returns all NICs that a ready attachment is to have by now, and whether something is to be done for that:
// nothing before the PodNICs were listed, or while they exclude each other.
func (b *observed) desired(r rules, rec attachment.Record) (nics []attachment.NIC, differ bool) {
	there := slices.DeleteFunc(b.of(rec.Pod), func(o object) bool { return o.givenUp })
	if !b.sync.Listed(podNICs) || rec.Pod.UID == "" || checkTogether(there) != nil {
		return nil, false
	}
	for _, old := range rec.NICs {
		now, stays := b.becomes(rec, old, there)
		if stays {
			nics = append(nics, now)
		}
		differ = differ || !stays || now.State != attachment.Plugged && !unready(now, there)
	}
	if !r.takesMore(rec) {
		return nics, differ
	}
	for _, o := range there {
		has := func(n attachment.NIC) bool { return n.IfName == o.ifName }
		if usable(o) && o.ifName != rec.Key.IfName && !slices.ContainsFunc(rec.NICs, has) {
			nics, differ = append(nics, added(o)), true
		}
	}
	return nics, differ
}

// usable reports whether a PodNIC's port may be plugged.
func usable(o object) bool { return o.bound() && o.err == nil }

// added returns the NIC of a PodNIC that is new to a running pod.
func added(o object) attachment.NIC {
	n := o.nic
	n.State, n.Later = attachment.Plugging, true
	return n
}

// unready reports whether a NIC that is being plugged has to wait until the operator has bound its port.
func unready(n attachment.NIC, there []object) bool {
	return !slices.ContainsFunc(there, func(o object) bool { return o.ifName == n.IfName && usable(o) })
}

// takesMore reports whether an attachment is the one that has the NICs of its pod.
func (r rules) takesMore(rec attachment.Record) bool {
	if r.firstIsPort {
		return rec.First() != nil
	}
	return rec.Key.IfName == firstInterface
}

// becomes returns what a NIC of a ready attachment is to become, given the PodNICs that its pod has not given up; without
// stays, it is to be unplugged. Where the port was created again, or another PodNIC took the interface, that replaces it
// once it is bound. The pod's own interface, and the one with its default route, stay until the pod ends: without
// them it would have no network.
func (b *observed) becomes(rec attachment.Record, old attachment.NIC, there []object) (now attachment.NIC, stays bool) {
	keep := old.IfName == rec.Key.IfName || old.DefaultRoute
	at := slices.IndexFunc(there, func(o object) bool { return o.ifName == old.IfName })
	if at >= 0 && usable(there[at]) {
		now = there[at].nic
		now.DefaultRoute = old.DefaultRoute // decided when the pod started
		if now.Plug.Type == old.Plug.Type {
			now.Plug.Enforcing = old.Plug.Enforcing // likewise
		}
		if old.Is(now) {
			return adapted(rec, old, now), true
		}
		now.State, now.Later = attachment.Plugging, true
		return now, true
	}
	if at >= 0 || keep {
		return old, true
	}
	// It was given up or deleted, or has another interface by now.
	return old, false
}

// adapted returns a NIC with what its port is now.
func adapted(rec attachment.Record, old, now attachment.NIC) attachment.NIC {
	now.HostLink, now.HostMAC, now.State, now.Later = old.HostLink, old.HostMAC, old.State, old.Later
	if now.Plug.Type == string(plug.Netns) || now.MTU == 0 {
		now.MTU = old.MTU // as the agent chose it
	}
	// A NIC that would lose an address keeps what the pod sees, but not how it is plugged.
	if ofMachine(old) || moved(rec, old, now) {
		now.MAC, now.MTU, now.Addresses, now.Routes = old.MAC, old.MTU, old.Addresses, old.Routes
	}
	if alike(old, now) {
		return old
	}
	if now.Later = true; now.State == attachment.Plugged {
		now.State = attachment.Changing
	}
	return now
}

// alike reports whether two states of a NIC are the same in the pod and on the node.
func alike(a, b attachment.NIC) bool {
	return slices.Equal(a.MAC, b.MAC) && a.MTU == b.MTU && a.Plug == b.Plug && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Routes, b.Routes)
}

// ofMachine reports whether a virtual machine uses the NIC: its guest keeps the addresses, and its device the MAC address
// and the MTU, with which it started.
func ofMachine(n attachment.NIC) bool { return n.Binding != "" && n.State == attachment.Plugged }

// outdated reports whether a plugged NIC stays as it is although its port has changed.
func outdated(rec attachment.Record, has, port attachment.NIC) bool {
	return moved(rec, has, port) || ofMachine(has) && !(slices.Equal(has.MAC, port.MAC) && slices.Equal(has.Addresses, port.Addresses))
}

// moved reports whether the pod's own interface would lose an address. The kubelet and Services know the pod by its
// addresses while it lives; it may get further ones.
func moved(rec attachment.Record, old, now attachment.NIC) bool {
	return old.IfName == rec.Key.IfName && slices.ContainsFunc(old.Addresses, func(a attachment.NICAddress) bool {
		return !slices.ContainsFunc(now.Addresses, func(n attachment.NICAddress) bool { return n.CIDR == a.CIDR })
	})
}
