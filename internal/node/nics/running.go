package nics

import (
	"bytes"
	"context"
	"errors"
	"net"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
)

// Plugged implements nicpart.NICs. The report to the operator follows later.
func (n *NICs) Plugged(rec attachment.Record) { n.change(func(o *observed) { o.setPlugged(rec) }) }

// Unplugged implements nicpart.NICs. It is reported until the operator has seen it.
func (n *NICs) Unplugged(rec attachment.Record) { n.change(func(o *observed) { o.setUnplugged(rec) }) }

// outcome keeps for the operator why a NIC could not be plugged or unplugged, unless the call was cancelled.
func (n *NICs) outcome(rec attachment.Record, nic attachment.NIC, reason string, err error) {
	switch {
	case err == nil:
		n.mu.Lock()
		delete(n.observed.failed, nic.UID)
		n.mu.Unlock()
		return
	case errors.Is(err, context.Canceled):
		return
	}
	f := failureOf(err, reason)
	f.pod, f.port = rec.Pod.UID, nic.Port
	n.change(func(o *observed) {
		if o.find(rec, nic) != nil {
			o.failed[nic.UID] = f
		}
	})
}

// Desired implements nicpart.NICs.
func (n *NICs) Desired(rec attachment.Record) (nics []attachment.NIC, differ bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.observed.desired(n.rules, rec)
}

// DesiredChanged implements nicpart.NICs.
func (n *NICs) DesiredChanged() <-chan struct{} { return n.news }

// LinkChanged implements nicpart.NICs. A NIC depends on the links of its port, all of which are
// named by the port's ID, on its trunk if it is a VLAN, and on the links by which the node routes to it.
func (n *NICs) LinkChanged(name string, address net.HardwareAddr) {
	n.mu.Lock()
	ports := n.observed.dependingOn(name, address)
	n.mu.Unlock()
	if name == "" || len(ports) > 0 {
		n.drift.note(ports...)
	}
}

// dependsOn reports whether a NIC needs a link of the node.
func dependsOn(n attachment.NIC, name string, address net.HardwareAddr) bool {
	kind := plug.Kind(n.Plug.Type)
	switch {
	case !isVLAN(n.Plug):
		return plug.IsLinkOf(name, n.Port)
	case kind == plug.RoutedVLAN && name != "" && (name == n.HostLink || name == plug.Ref{PortID: n.Port, Kind: kind}.VLANLink()):
		return true
	}
	trunk, err := net.ParseMAC(n.Plug.Trunk)
	return err == nil && bytes.Equal(trunk, address)
}
