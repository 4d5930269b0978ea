package adopt

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/attachment"
)

// GiveBack returns an attachment to another network. former is the state that the network expects for an attachment that
// Berth created; the state of an adopted one is in its record. The other network's state must contain the attachment first,
// because its record is removed at the end. If the link is gone, the pod has ended, and only the record is removed.
//
// inside changes the pod's side if it must: it is called when both networks have a path to the pod, and the node answers
// the pod's ARP requests again. nil: nothing changes there.
func (a *Adopter) GiveBack(ctx context.Context, rec attachment.Record, former attachment.Adopted, inside func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := a.giveBack(rec, former, inside); err != nil {
		return fmt.Errorf("give back %s: %w", rec.Key, err)
	}
	a.log.Info("gave a pod back", rec.ForLog("former-link", rec.HostLink)...)
	return nil
}

func (a *Adopter) giveBack(rec attachment.Record, former attachment.Adopted, inside func() error) error {
	if rec.Adopted == nil {
		rec.Adopted = &former
		if err := a.store.Put(rec); err != nil {
			return err
		}
	}
	if err := failpoint.Hit("giveback.record.after"); err != nil {
		return err
	}
	link, err := a.link(rec)
	if err != nil {
		return err
	}
	if link != nil {
		if err := a.restoreFormer(rec, link, inside); err != nil {
			return err
		}
	}
	return a.store.Delete(rec.Key)
}

// link returns the link of an adopted attachment under its own or its former name, or nil. The former name may depend only on
// the pod's name, so a link with another MAC address belongs to a later pod of the same name.
func (a *Adopter) link(rec attachment.Record) (netlink.Link, error) {
	for _, name := range []string{rec.HostLink, rec.Adopted.HostLink} {
		link, err := a.host.LinkByName(name)
		if err == nil && link.Type() == "veth" && (name == rec.HostLink || bytes.Equal(link.Attrs().HardwareAddr, rec.HostMAC)) {
			return link, nil
		}
		if err != nil && !rtnl.IsNoLink(err) {
			return nil, fmt.Errorf("look up %s: %w", name, err)
		}
	}
	return nil, nil
}

// restoreFormer sets the former routes, rules and names, changes the pod's side, and then removes Berth's.
func (a *Adopter) restoreFormer(rec attachment.Record, link netlink.Link, inside func() error) error {
	index := link.Attrs().Index
	if err := a.setRoutes(rec.Adopted.Routes, index); err != nil {
		return err
	}
	if err := failpoint.Hit("giveback.routes.after"); err != nil {
		return err
	}
	for _, r := range rec.Adopted.Rules {
		if err := a.host.RuleAdd(RuleOf(r)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("set the rule %+v: %w", r, err)
		}
	}
	if err := failpoint.Hit("giveback.rules.after"); err != nil {
		return err
	}
	if err := a.restoreLink(*rec.Adopted, link); err != nil {
		return err
	}
	if err := failpoint.Hit("giveback.rename.after"); err != nil {
		return err
	}
	// An old kernel has removed the routes with the rename.
	if err := a.setRoutes(rec.Adopted.Routes, index); err != nil {
		return err
	}
	if inside != nil {
		if err := inside(); err != nil {
			return err
		}
	}
	if err := a.removeOwn(rec, index); err != nil {
		return err
	}
	return failpoint.Hit("giveback.clean.after")
}

func (a *Adopter) setRoutes(list []attachment.AdoptedRoute, index int) error {
	for _, r := range list {
		if err := a.host.RouteReplace(routeOf(r, index)); err != nil {
			return fmt.Errorf("set the route %+v: %w", r, err)
		}
	}
	return nil
}

// restoreLink sets the former alias, MTU and name of a link.
func (a *Adopter) restoreLink(former attachment.Adopted, link netlink.Link) error {
	if former.Alias != "" {
		if err := a.host.LinkSetAlias(link, former.Alias); err != nil {
			return fmt.Errorf("set the alias of %s: %w", link.Attrs().Name, err)
		}
	}
	if former.MTU != 0 && former.MTU != link.Attrs().MTU {
		if err := a.host.LinkSetMTU(link, former.MTU); err != nil {
			return fmt.Errorf("set the MTU of %s: %w", link.Attrs().Name, err)
		}
	}
	if err := datapath.LeaveGroup(a.host, link); err != nil {
		return err
	}
	return datapath.RenameLink(a.host, link, former.HostLink)
}

// removeOwn removes Berth's routes and neighbour entries of an attachment.
func (a *Adopter) removeOwn(rec attachment.Record, index int) error {
	for _, addr := range rec.Lease.Held() {
		routes, err := a.routes(index, addr)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Protocol != datapath.Protocol {
				continue
			}
			if err := a.host.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
				return fmt.Errorf("remove the route to %s: %w", addr, err)
			}
		}
		if err := a.host.NeighDel(rtnl.PermanentNeighbour(index, addr, nil)); err != nil && !rtnl.IsGone(err) {
			return fmt.Errorf("remove the neighbour entry of %s: %w", addr, err)
		}
	}
	return nil
}
