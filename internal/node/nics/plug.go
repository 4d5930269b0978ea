package nics

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
)

// Plug plugs a NIC of a recorded attachment into its pod, and returns it with what the kernel chose. It is idempotent,
// and completes what an interrupted call left.
func (n *NICs) Plug(ctx context.Context, rec attachment.Record, nic attachment.NIC) (attachment.NIC, error) {
	started, w := n.clock.Now(), want(rec, nic)
	var done plug.Done
	err := needIPv6(ctx, n.cfg.NeedIPv6, w)
	if err == nil {
		done, err = n.cfg.Plugger.Plug(ctx, w)
	}
	n.cfg.Observer.Plugged(nic.Plug.Type, err, n.clock.Now().Sub(started))
	if err != nil {
		n.failed(rec, nic, reasonPlug, err)
		return nic, err
	}
	n.mu.Lock()
	delete(n.observed.failed, nic.UID)
	n.mu.Unlock()
	nic.HostLink, nic.HostMAC, nic.MTU = done.HostIfName, mac.Addr(done.HostMAC), cmp.Or(done.MTU, nic.MTU)
	return nic, nil
}

// needIPv6 turns IPv6 on where the node is to route it to a port.
func needIPv6(ctx context.Context, turnOn func(context.Context) error, w plug.Want) error {
	routes := w.Kind == plug.RoutedVLAN && slices.ContainsFunc(w.Interface.Addresses, func(a netip.Prefix) bool { return a.Addr().Is6() })
	if !routes || turnOn == nil {
		return nil
	}
	if err := turnOn(ctx); err != nil {
		return fmt.Errorf("turn IPv6 on for port %s: %w", w.PortID, err)
	}
	return nil
}

// failed reports to the operator why a NIC could not be plugged or unplugged, unless the call was cancelled. reason is
// that of errors without a reason of their own.
func (n *NICs) failed(rec attachment.Record, nic attachment.NIC, reason string, err error) {
	if errors.Is(err, context.Canceled) {
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

// Unplug removes a NIC with everything that Plug created, also after an interrupted call or in a namespace that is gone.
// It is idempotent.
func (n *NICs) Unplug(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	err := n.cfg.Plugger.Unplug(ctx, ref(rec, nic))
	if err != nil {
		n.failed(rec, nic, reasonUnplug, err)
		return err
	}
	n.mu.Lock()
	delete(n.observed.failed, nic.UID)
	n.mu.Unlock()
	return nil
}

// Check returns how the kernel and Open vSwitch differ from a NIC. It changes nothing.
func (n *NICs) Check(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	return n.cfg.Plugger.Check(ctx, want(rec, nic))
}

// Plugged notes that an attachment is ready with those of its NICs that are not being plugged, and no others: at
// its ADD, at start for each record that is ready, and after a change. The report to the operator follows later.
func (n *NICs) Plugged(rec attachment.Record) { n.change(func(o *observed) { o.setPlugged(rec) }) }

// Unplugged notes that nothing is left of an attachment's NICs on the node, although its record still exists. It is
// reported until the operator has seen it.
func (n *NICs) Unplugged(rec attachment.Record) { n.change(func(o *observed) { o.setUnplugged(rec) }) }

// Sweep removes plugs for which keep returns false. keep is called with the attachment (attachment.Record.HostLink) and
// the port, both empty for what an interrupted call left. Sweep may run beside ADDs, as keep is called after the plugs
// were listed. If plugs of one kind cannot be listed, those of other kinds are swept.
func (n *NICs) Sweep(ctx context.Context, keep func(hostLink, port string) bool) error {
	found, err := n.cfg.Plugger.List(ctx)
	errs := []error{err}
	for _, f := range found {
		if keep(f.Attachment, f.PortID) {
			continue
		}
		if err := failpoint.Hit("port.remove.before"); err != nil {
			return err
		}
		if err := n.cfg.Plugger.Remove(ctx, f); err != nil {
			errs = append(errs, fmt.Errorf("remove port %s of %s: %w", cmp.Or(f.PortID, f.Link), cmp.Or(f.Attachment, "no attachment"), err))
			continue
		}
		n.log.Info("removed a plug without an attachment", "port", f.PortID, "attachment", f.Attachment, "link", f.Link, "kind", f.Kind)
	}
	return errors.Join(errs...)
}

// Plugs returns the attachments (attachment.Record.HostLink) that have anything plugged.
func (n *NICs) Plugs(ctx context.Context) ([]string, error) {
	found, err := n.cfg.Plugger.List(ctx)
	var links []string
	for _, f := range found {
		if f.Attachment != "" && !slices.Contains(links, f.Attachment) {
			links = append(links, f.Attachment)
		}
	}
	return links, err
}

// Desired returns all NICs that a ready attachment is to have by now, and whether something is to be done for that,
// which their states say.
func (n *NICs) Desired(rec attachment.Record) (nics []attachment.NIC, differ bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.observed.desired(n.rules, rec)
}

// DesiredChanged has an element when running pods may have to get other NICs.
func (n *NICs) DesiredChanged() <-chan struct{} { return n.news }

// Drifted has an element when other software may have changed something that is plugged.
func (n *NICs) Drifted() <-chan struct{} { return n.drift.changed }

// TakeDrift returns the ports whose plugs other software may have changed since the last call; all: any port.
func (n *NICs) TakeDrift() (ports []string, all bool) { return n.drift.take() }

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

// dependsOn tells whether a NIC needs a link of the node.
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
