package vlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// inside lists Berth's VLAN links in a namespace, from the viewpoint of one port.
type inside struct {
	mine       []*netlink.Vlan // labelled for the port, under any name
	incomplete []*netlink.Vlan // without an alias: creation was interrupted
	others     []*netlink.Vlan
}

// look lists Berth's VLAN links in a namespace.
func look(s *podif.Namespace, r plug.Ref) (in inside, err error) {
	links, err := rtnl.Whole(s.NL.LinkList)
	if err != nil {
		return in, fmt.Errorf("list links in %s: %w", s.Path, err)
	}
	for _, l := range links {
		v, ok := l.(*netlink.Vlan)
		if !ok || v.Group != plug.LinkGroup {
			continue
		}
		switch other, ok := plug.ParseMark(v.Alias); {
		case v.Alias == "":
			in.incomplete = append(in.incomplete, v)
		case ok && other.Attachment == r.Attachment && other.PortID == r.PortID:
			in.mine = append(in.mine, v)
		case ok && other.Kind == plug.VLAN:
			in.others = append(in.others, v)
		}
	}
	return in, nil
}

// place is the location of a port's link: in a pod under the name of the interface, or on the node (onNode) under the
// name of the port.
type place struct {
	*podif.Namespace
	name string
}

// inPod is the place of a port's link in its pod.
func inPod(pod *podif.Namespace, w plug.Want) place { return place{pod, w.Pod.IfName} }

// home reports whether the place is on the node.
func (at place) home() bool { return at.Path == nodePath }

// text describes the place in messages.
func (at place) text() string {
	if at.home() {
		return ""
	}
	return " in the pod"
}

// hasParent reports whether the parent of a link in this place is on the node.
func (at place) hasParent(l *netlink.Vlan) bool { return l.NetNsID >= 0 || at.home() }

// ensure creates the link of a port or returns the existing one. It first removes incomplete links
// and links of the port with another VLAN or trunk. Errors: plug.ErrInterfaceExists,
// plug.ErrNameTaken, plug.ErrPortInUse, plug.ErrNoVLAN.
func (p *Plugger) ensure(ctx context.Context, w plug.Want, at place, trunk *netlink.LinkAttrs) (*netlink.Vlan, error) {
	in, err := look(at.Namespace, w.Ref)
	if err != nil {
		return nil, err
	}
	var l *netlink.Vlan
	for _, have := range in.mine {
		if l == nil && have.VlanId == w.VLAN && at.hasParent(have) && have.ParentIndex == trunk.Index {
			l = have
			continue
		}
		in.incomplete = append(in.incomplete, have)
	}
	for _, old := range in.incomplete {
		if err := remove(at.Namespace, old); err != nil {
			return nil, err
		}
	}
	if l == nil {
		if l, err = p.create(ctx, w, at, trunk); err != nil {
			return nil, err
		}
	}
	if l.Name == temporaryName(w.Ref) && l.Name != at.name {
		return l, name(w, at, l)
	}
	return l, nil
}

// temporaryName is the name of a link until it has its alias. Kernels such as Debian's 6.1 refuse to create a link in
// another namespace under a name that is in use on the node, such as eth0 (rtnl_newlink).
func temporaryName(r plug.Ref) string { return r.VLANLink() }

// create creates the VLAN link in its place, in the link group of ports, and labels it. If the kernel refuses because the
// VLAN already has a link, that link may be disappearing with its namespace: create retries briefly, unless the link has
// another owner.
func (p *Plugger) create(ctx context.Context, w plug.Want, at place, trunk *netlink.LinkAttrs) (*netlink.Vlan, error) {
	switch there, err := at.Link(at.name); {
	case err != nil:
		return nil, err
	case there != nil && at.home():
		_, err := w.OwnerOf(there.Attrs())
		return nil, cmp.Or(err, taken(w, at, at.name))
	case there != nil:
		return nil, taken(w, at, at.name)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group, attrs.HardwareAddr = temporaryName(w.Ref), w.Interface.MTU, plug.LinkGroup, w.Interface.MAC
	attrs.ParentIndex, attrs.Namespace = trunk.Index, netlink.NsFd(at.NS)
	v := &netlink.Vlan{LinkAttrs: attrs, VlanId: w.VLAN, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	bounded, cancel := context.WithTimeout(ctx, p.briefly())
	defer cancel()
	for first := true; ; first = false {
		err := p.node.NL.LinkAdd(v)
		if err == nil {
			return mark(w, at)
		}
		if !errors.Is(err, unix.EEXIST) {
			return nil, explain(err, w, trunk)
		}
		if there, err := at.Link(temporaryName(w.Ref)); err != nil {
			return nil, err
		} else if there != nil {
			return nil, taken(w, at, temporaryName(w.Ref))
		}
		if last := bounded.Err() != nil; first || last {
			if again, err := p.findOwner(ctx, w, trunk); err != nil && (last || !again) {
				return nil, err
			}
		}
		pause(bounded)
	}
}

// findOwner finds the owner of a VLAN. again reports that the VLAN may be free soon, because its link is being created or
// removed, or was left by the same port. Errors: plug.ErrNameTaken, plug.ErrPortInUse.
func (p *Plugger) findOwner(ctx context.Context, w plug.Want, trunk *netlink.LinkAttrs) (again bool, err error) {
	again = true
	err = fmt.Errorf("%w: VLAN %d of the trunk %s has a link in a network namespace outside %s", plug.ErrNameTaken, w.VLAN, trunk.Name, p.spaces.dir)
	failed := p.spaces.each(ctx, func(s *podif.Namespace) (more bool, failed error) {
		l, failed := p.spaces.vlanOf(s, w, trunk)
		if l == nil || failed != nil {
			return true, failed
		}
		again, err = checkOwner(s, l, w, trunk)
		if err == nil { // left by this port in an earlier namespace of its attachment
			return false, clean(s, w.Ref)
		}
		return false, nil
	})
	if failed != nil {
		return false, failed
	}
	return again, err
}

func taken(w plug.Want, at place, name string) error {
	if at.home() {
		return fmt.Errorf("%w: %s belongs to another owner", plug.ErrNameTaken, name)
	}
	hint := ""
	if w.Binding == plug.BindingBridge {
		hint = "; if a VM runtime owns it, recreate the pod"
	}
	return fmt.Errorf("%s in %s: %w%s", name, at.Path, plug.ErrInterfaceExists, hint)
}

// explain wraps the kernel's error for a VLAN that could not be created.
func explain(err error, w plug.Want, trunk *netlink.LinkAttrs) error {
	what := fmt.Sprintf("create VLAN %d of the trunk %s", w.VLAN, trunk.Name)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %s: %w; load the kernel module 8021q", plug.ErrNoVLAN, what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func pause(ctx context.Context) {
	wait := time.NewTimer(pollInterval)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}

// mark writes the owner of a new link into its alias.
func mark(w plug.Want, at place) (*netlink.Vlan, error) {
	if err := failpoint.Hit("plug.vlan.made.after"); err != nil {
		return nil, err
	}
	l, err := at.NL.LinkByName(temporaryName(w.Ref))
	if err != nil {
		return nil, fmt.Errorf("look up %s in %s: %w", temporaryName(w.Ref), at.Path, err)
	}
	v, ok := l.(*netlink.Vlan)
	if !ok || v.Group != plug.LinkGroup { // a container of the pod replaced it
		return nil, taken(w, at, temporaryName(w.Ref))
	}
	if err := at.NL.LinkSetAlias(rtnl.LinkRef(v.Index), w.Mark()); err != nil {
		return nil, fmt.Errorf("set the alias of %s in %s: %w", v.Name, at.Path, err)
	}
	return v, failpoint.Hit("plug.vlan.mark.after")
}

// name renames a labelled link. It sets the link down first, because a link that is up cannot be renamed; the link comes
// up together with its trunk.
func name(w plug.Want, at place, l *netlink.Vlan) error {
	if err := at.NL.LinkSetDown(rtnl.LinkRef(l.Index)); err != nil {
		return fmt.Errorf("set %s down in %s: %w", l.Name, at.Path, err)
	}
	err := at.NL.LinkSetName(rtnl.LinkRef(l.Index), at.name)
	if errors.Is(err, unix.EEXIST) {
		return taken(w, at, at.name)
	}
	if err != nil {
		return fmt.Errorf("rename %s to %s in %s: %w", l.Name, at.name, at.Path, err)
	}
	l.Name = at.name
	return failpoint.Hit("plug.vlan.name.after")
}

// clean removes the links of a port and incomplete links from a namespace.
func clean(s *podif.Namespace, r plug.Ref) error {
	in, err := look(s, r)
	if err != nil {
		return err
	}
	for _, l := range append(in.mine, in.incomplete...) {
		if err := remove(s, l); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a link and its policy rules, which the kernel would keep.
func remove(s *podif.Namespace, l *netlink.Vlan) error {
	return failpoint.Around("plug.vlan.remove", func() error {
		if err := s.Forget(l.Index); err != nil {
			return err
		}
		if err := s.NL.LinkDel(rtnl.LinkRef(l.Index)); err != nil && !rtnl.IsNoLink(err) {
			return fmt.Errorf("remove %s in %s: %w", l.Name, s.Path, err)
		}
		return nil
	})
}
