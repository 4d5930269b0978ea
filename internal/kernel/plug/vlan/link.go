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

// inside are the VLANs of Berth's in a namespace, as a port sees them.
type inside struct {
	mine   []*netlink.Vlan // with the port's mark, under whatever names
	half   []*netlink.Vlan // without a mark: the program ended while it was made
	others []*netlink.Vlan
}

// look finds the VLANs of Berth's in a namespace.
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
			in.half = append(in.half, v)
		case ok && other.Attachment == r.Attachment && other.PortID == r.PortID:
			in.mine = append(in.mine, v)
		case ok && other.Kind == plug.VLAN:
			in.others = append(in.others, v)
		}
	}
	return in, nil
}

// place is where a port's link is to be, and as what: in a pod, under the interface's name, or on
// the node (onNode), under a name of the port's own.
type place struct {
	*podif.Namespace
	name string
}

// inPod is the place of a port's link in its pod.
func inPod(pod *podif.Namespace, w plug.Want) place { return place{pod, w.Pod.IfName} }

// home tells whether the place is on the node.
func (at place) home() bool { return at.Path == nodePath }

// text says in messages where the place is.
func (at place) text() string {
	if at.home() {
		return ""
	}
	return " in the pod"
}

// hasParent tells whether a link that was found there is on a link of the node's.
func (at place) hasParent(l *netlink.Vlan) bool { return l.NetNsID >= 0 || at.home() }

// ensure makes the port's link in its place, or finds the one that is there. What is half made
// there, and what the port had of another VLAN or trunk, is removed first. Errors:
// plug.ErrInterfaceExists, plug.ErrNameTaken, plug.ErrPortInUse, plug.ErrNoVLAN.
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
		in.half = append(in.half, have)
	}
	for _, old := range in.half {
		if err := remove(at.Namespace, old); err != nil {
			return nil, err
		}
	}
	if l == nil {
		if l, err = p.create(ctx, w, at, trunk); err != nil {
			return nil, err
		}
	}
	if l.Name == unfinished(w.Ref) && l.Name != at.name {
		return l, name(w, at, l)
	}
	return l, nil
}

// unfinished is what a port's link is called until it has its mark. It is made in the pod's
// namespace, and all the same kernels such as Debian's 6.1 refuse a name that a link of the node has,
// such as eth0 (rtnl_newlink).
func unfinished(r plug.Ref) string { return r.VLANLink() }

// create makes the VLAN's link in the pod, with the group of ports, and marks it. When the kernel
// refuses it, as the VLAN has a link, that may be going with its namespace: it is tried again
// for a while, unless it is known whose it is.
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
	attrs.Name, attrs.MTU, attrs.Group, attrs.HardwareAddr = unfinished(w.Ref), w.Interface.MTU, plug.LinkGroup, w.Interface.MAC
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
		if there, err := at.Link(unfinished(w.Ref)); err != nil {
			return nil, err
		} else if there != nil {
			return nil, taken(w, at, unfinished(w.Ref))
		}
		if last := bounded.Err() != nil; first || last {
			if again, err := p.holds(ctx, w, trunk); err != nil && (last || !again) {
				return nil, err
			}
		}
		pause(bounded)
	}
}

func taken(w plug.Want, at place, name string) error {
	if at.home() {
		return fmt.Errorf("%w: %s is another's", plug.ErrNameTaken, name)
	}
	hint := ""
	if w.Binding == plug.BindingBridge {
		hint = "; where it is the machine's runtime's, only a new pod gets the port again"
	}
	return fmt.Errorf("%s in %s: %w%s", name, at.Path, plug.ErrInterfaceExists, hint)
}

// explain says why the kernel made no VLAN.
func explain(err error, w plug.Want, trunk *netlink.LinkAttrs) error {
	what := fmt.Sprintf("make VLAN %d of the trunk %s", w.VLAN, trunk.Name)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %s: %w; the node needs the kernel's module 8021q", plug.ErrNoVLAN, what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func pause(ctx context.Context) {
	wait := time.NewTimer(again)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}

// mark writes for whom a link was made.
func mark(w plug.Want, at place) (*netlink.Vlan, error) {
	if err := failpoint.Hit("plug.vlan.made.after"); err != nil {
		return nil, err
	}
	l, err := at.NL.LinkByName(unfinished(w.Ref))
	if err != nil {
		return nil, fmt.Errorf("look up %s in %s: %w", unfinished(w.Ref), at.Path, err)
	}
	v, ok := l.(*netlink.Vlan)
	if !ok || v.Group != plug.LinkGroup { // a container was faster
		return nil, taken(w, at, unfinished(w.Ref))
	}
	if err := at.NL.LinkSetAlias(rtnl.LinkRef(v.Index), w.Mark()); err != nil {
		return nil, fmt.Errorf("mark %s in %s: %w", v.Name, at.Path, err)
	}
	return v, failpoint.Hit("plug.vlan.mark.after")
}

// name gives a marked link the interface's name. One that is up, as a link is whose trunk came up
// meanwhile, cannot be renamed.
func name(w plug.Want, at place, l *netlink.Vlan) error {
	if err := at.NL.LinkSetDown(rtnl.LinkRef(l.Index)); err != nil {
		return fmt.Errorf("set %s down in %s: %w", l.Name, at.Path, err)
	}
	err := at.NL.LinkSetName(rtnl.LinkRef(l.Index), at.name)
	if errors.Is(err, unix.EEXIST) {
		return taken(w, at, at.name)
	}
	if err != nil {
		return fmt.Errorf("call %s %s in %s: %w", l.Name, at.name, at.Path, err)
	}
	l.Name = at.name
	return failpoint.Hit("plug.vlan.name.after")
}

// clean removes what is of a port in a namespace, and what is half made there.
func clean(s *podif.Namespace, r plug.Ref) error {
	in, err := look(s, r)
	if err != nil {
		return err
	}
	for _, l := range append(in.mine, in.half...) {
		if err := remove(s, l); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a link, with the rules that would outlast it.
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
