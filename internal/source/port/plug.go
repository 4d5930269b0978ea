package port

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/ovsdb"
	"github.com/berthnet/berth/internal/retry"
)

// Plug puts a NIC of a recorded attachment into its pod, and returns it with what the
// kernel tells of it. It is idempotent, and finishes what is half done.
func (n *NICs) Plug(ctx context.Context, rec attachment.Record, nic attachment.NIC) (attachment.NIC, error) {
	begun := n.clock.Now()
	done, err := n.cfg.Plugger.Plug(ctx, want(rec, nic))
	n.cfg.Observer.Plugged(nic.Plug.Type, err, n.clock.Now().Sub(begun))
	if err != nil {
		n.failed(rec, nic, err)
		return nic, err
	}
	n.mu.Lock()
	delete(n.book.failed, nic.UID)
	n.mu.Unlock()
	nic.HostLink, nic.HostMAC, nic.MTU = done.HostIfName, mac.Addr(done.HostMAC), cmp.Or(done.MTU, nic.MTU)
	return nic, nil
}

// failed has the operator told why a NIC cannot be plugged, unless nobody waits for it
// any more.
func (n *NICs) failed(rec attachment.Record, nic attachment.NIC, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	n.change(func(b *book) {
		if b.find(rec, nic) != nil {
			b.failed[nic.UID] = failure{rec.Pod.UID, err.Error()}
		}
	})
}

// Unplug takes a NIC away with all that Plug made, also what is half there, and in a
// namespace that is gone. It is idempotent.
func (n *NICs) Unplug(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	return n.cfg.Plugger.Unplug(ctx, ref(rec, nic))
}

// Check tells how the kernel and Open vSwitch differ from a NIC, and changes nothing.
func (n *NICs) Check(ctx context.Context, rec attachment.Record, nic attachment.NIC) error {
	return n.cfg.Plugger.Check(ctx, want(rec, nic))
}

// Plugged says that an attachment is ready with its NICs, and no others: at its ADD, at
// start for each record that is, and after a port was replaced. Run
// tells the operator later; this does not wait for it.
func (n *NICs) Plugged(rec attachment.Record) {
	n.change(func(b *book) {
		maps.DeleteFunc(b.plugged, func(_ string, h held) bool { return h.rec.Key == rec.Key })
		for _, nic := range rec.NICs {
			b.plugged[nic.UID] = held{rec, nic}
			delete(b.failed, nic.UID)
			delete(b.unplugged, nic.UID)
		}
	})
}

// Unplugged says that nothing is left of an attachment's NICs on the node. It is told
// until the operator has heard it. Their record is there still: nobody says when it goes.
func (n *NICs) Unplugged(rec attachment.Record) {
	n.change(func(b *book) {
		for _, nic := range rec.NICs {
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

// Replaced returns the NICs that a ready attachment should have, as many and in the same
// order, if the port of one was made again and is bound to this node; else not ok.
func (n *NICs) Replaced(rec attachment.Record) (nics []attachment.NIC, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.book.replaced(rec)
}

// Changed has an element when others changed something that is plugged, or the operator
// what is to be, and the NICs of all attachments are to be checked.
func (n *NICs) Changed() <-chan struct{} { return n.changed }

// LinkLost says that a link of the node is gone or went down; empty: any may be. One of those
// of a port that is plugged, all of which are called by its ID, is a change.
func (n *NICs) LinkLost(name string) {
	n.mu.Lock()
	ours := name == ""
	for _, h := range n.book.plugged {
		ours = ours || plug.IsLinkOf(name, h.nic.Port)
	}
	n.mu.Unlock()
	if ours {
		n.changed.Set()
	}
}

// watchSwitch tells of changes in OVSDB, and tries again when it was told of none for a
// reason other than the end.
func (n *NICs) watchSwitch(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		n.cfg.Switch.Watch(ctx, func([]ovsdb.Change) { n.changed.Set() })
		select {
		case <-ctx.Done():
		case <-n.clock.After(retry.Delay(retry.First, retry.Most, failures)):
		}
	}
}
