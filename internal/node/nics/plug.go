package nics

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

// Plug puts a NIC of a recorded attachment into its pod, and returns it with what the
// kernel tells of it. It is idempotent, and finishes what is half done.
func (n *NICs) Plug(ctx context.Context, rec attachment.Record, nic attachment.NIC) (attachment.NIC, error) {
	begun, w := n.clock.Now(), want(rec, nic)
	var done plug.Done
	err := n.forIPv6(ctx, w)
	if err == nil {
		done, err = n.cfg.Plugger.Plug(ctx, w)
	}
	n.cfg.Observer.Plugged(nic.Plug.Type, err, n.clock.Now().Sub(begun))
	if err != nil {
		n.failed(rec, nic, reasonPlug, err)
		return nic, err
	}
	n.mu.Lock()
	delete(n.book.failed, nic.UID)
	n.mu.Unlock()
	nic.HostLink, nic.HostMAC, nic.MTU = done.HostIfName, mac.Addr(done.HostMAC), cmp.Or(done.MTU, nic.MTU)
	return nic, nil
}

// forIPv6 has IPv6 on where the node is to route it to a port.
func (n *NICs) forIPv6(ctx context.Context, w plug.Want) error {
	routes := w.Kind == plug.RoutedVLAN && slices.ContainsFunc(w.Interface.Addresses, func(a netip.Prefix) bool { return a.Addr().Is6() })
	if !routes || n.cfg.NeedIPv6 == nil {
		return nil
	}
	if err := n.cfg.NeedIPv6(ctx); err != nil {
		return fmt.Errorf("turn IPv6 on for port %s: %w", w.PortID, err)
	}
	return nil
}

// failed has the operator told why something cannot be done about a NIC, unless nobody
// waits for it any more. Reason is that of an error that has none of its own.
func (n *NICs) failed(rec attachment.Record, nic attachment.NIC, reason string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	f := failureOf(err, reason)
	f.pod, f.port = rec.Pod.UID, nic.Port
	n.change(func(b *book) {
		if b.find(rec, nic) != nil {
			b.failed[nic.UID] = f
		}
	})
}

// Unplug takes a NIC away with all that Plug made, also what is half there, and in a
// namespace that is gone. It is idempotent.
func (n *NICs) Unplug(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	err := n.cfg.Plugger.Unplug(ctx, ref(rec, nic))
	if err != nil {
		n.failed(rec, nic, reasonUnplug, err)
		return err
	}
	n.mu.Lock()
	delete(n.book.failed, nic.UID)
	n.mu.Unlock()
	return nil
}

// Check tells how the kernel and Open vSwitch differ from a NIC, and changes nothing.
func (n *NICs) Check(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	return n.cfg.Plugger.Check(ctx, want(rec, nic))
}

// Plugged says that an attachment is ready with those of its NICs that are not being
// plugged, and no others: at its ADD, at start for each record that is, and after a
// change. Run tells the operator later; this does not wait for it.
func (n *NICs) Plugged(rec attachment.Record) {
	n.change(func(b *book) {
		maps.DeleteFunc(b.plugged, func(_ string, h held) bool { return h.rec.Key == rec.Key })
		for _, nic := range rec.NICs {
			delete(b.unplugged, nic.UID)
			if nic.State == attachment.Plugging {
				continue
			}
			b.plugged[nic.UID] = held{rec, nic}
			if nic.State == attachment.Plugged {
				delete(b.failed, nic.UID)
			}
		}
	})
}

// Unplugged says that nothing is left of an attachment's NICs on the node. It is told
// until the operator has heard it. Their record is there still: nobody says when it goes.
func (n *NICs) Unplugged(rec attachment.Record) {
	n.change(func(b *book) {
		for _, nic := range rec.NICs {
			delete(b.failed, nic.UID)
			if h, ok := b.plugged[nic.UID]; ok && h.rec.Key == rec.Key {
				delete(b.plugged, nic.UID)
			}
			if o, ok := b.objects[types.NamespacedName{Namespace: rec.Pod.Namespace, Name: nic.Object}]; ok && string(o.uid) == nic.UID {
				b.unplugged[nic.UID] = true
			}
		}
	})
}

// Sweep takes away what is plugged on the node and keep says no of: a link of an
// attachment (attachment.Record.HostLink) with a port, or with both empty what was left
// half made and is nobody's yet. It may run beside ADDs, as keep is asked after the look.
func (n *NICs) Sweep(ctx context.Context, keep func(hostLink, port string) bool) error {
	return n.remove(ctx, func(f plug.Found) bool { return !keep(f.Attachment, f.PortID) })
}

// Plugs are the attachments (attachment.Record.HostLink) that have anything plugged.
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

// Clear takes away all that is plugged of one attachment.
func (n *NICs) Clear(ctx context.Context, hostLink string) error {
	return n.remove(ctx, func(f plug.Found) bool { return hostLink != "" && f.Attachment == hostLink })
}

// remove takes away what is plugged that is unwanted. What cannot be listed of one kind
// does not keep the others.
func (n *NICs) remove(ctx context.Context, unwanted func(plug.Found) bool) error {
	found, err := n.cfg.Plugger.List(ctx)
	errs := []error{err}
	for _, f := range found {
		if !unwanted(f) {
			continue
		}
		if err := failpoint.Hit("port.remove.before"); err != nil {
			return err
		}
		if err := n.cfg.Plugger.Remove(ctx, f); err != nil {
			errs = append(errs, fmt.Errorf("take away port %s of %s: %w", cmp.Or(f.PortID, f.Link), cmp.Or(f.Attachment, "no attachment"), err))
			continue
		}
		n.log.Info("took away what was plugged for nobody", "port", f.PortID, "attachment", f.Attachment, "link", f.Link, "kind", f.Kind)
	}
	return errors.Join(errs...)
}

// Wanted returns all NICs that a ready attachment is to have by now, and whether something
// is to be done for that, which their states say.
func (n *NICs) Wanted(rec attachment.Record) (nics []attachment.NIC, differ bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.book.wanted(n.rules, rec)
}

// News has an element when a ready attachment may have to have other NICs than before.
func (n *NICs) News() <-chan struct{} { return n.news }

// touched are the ports of which others may have changed what is plugged.
type touched struct {
	all   bool
	ports map[string]bool
}

// touch notes that others may have changed what is plugged of ports; of none: of any.
func (n *NICs) touch(ports ...string) {
	n.mu.Lock()
	if n.touched.ports == nil {
		n.touched.ports = map[string]bool{}
	}
	n.touched.all = n.touched.all || len(ports) == 0
	for _, p := range ports {
		n.touched.ports[p] = true
	}
	n.mu.Unlock()
	n.changed.Set()
}

// Changed has an element when others may have changed something that is plugged.
func (n *NICs) Changed() <-chan struct{} { return n.changed }

// Touched names the ports of which others may have changed what is plugged, since it was
// asked last; all: it may be any.
func (n *NICs) Touched() (ports []string, all bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ports, all = slices.Sorted(maps.Keys(n.touched.ports)), n.touched.all
	n.touched = touched{}
	return ports, all
}

// LinkChanged is as daemon.NICs documents it. A NIC depends on the links of its port, all of which are
// named by the port's ID, on its trunk if it is a VLAN, and on the links by which the node routes to it.
func (n *NICs) LinkChanged(name string, address net.HardwareAddr) {
	n.mu.Lock()
	var ports []string
	for _, h := range n.book.plugged {
		if dependsOn(h.nic, name, address) {
			ports = append(ports, h.nic.Port)
		}
	}
	n.mu.Unlock()
	if name == "" || len(ports) > 0 {
		n.touch(ports...)
	}
}

// dependsOn tells whether a NIC does not work without a link of the node.
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

// watchSwitch tells of changes in OVSDB, and tries again when it was told of none for a
// reason other than the end.
func (n *NICs) watchSwitch(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		n.cfg.Switch.Watch(ctx, func(changes []ovsdb.Change) {
			for _, c := range changes {
				if c.PortID == "" {
					n.touch()
				} else {
					n.touch(c.PortID)
				}
			}
		})
		select {
		case <-ctx.Done():
		case <-n.clock.After(retry.Delay(retry.First, retry.Most, failures)):
		}
	}
}
