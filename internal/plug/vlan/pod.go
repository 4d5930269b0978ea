package vlan

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/hostlink"
	"github.com/berthnet/berth/internal/plug/podif"
)

// ofPort finds the VLAN link of a port in a pod: by its mark, under whatever name, or the one that
// was half made under its name. nil: there is none.
func ofPort(pod *podif.Namespace, r plug.Ref) (*netlink.Vlan, error) {
	l, err := pod.Marked(r)
	if err != nil {
		return nil, err
	}
	if l == nil {
		if l, err = pod.Link(r.Pod.IfName); err != nil || l == nil {
			return nil, err
		}
		if a := l.Attrs(); a.Group != plug.LinkGroup || a.Alias != "" {
			return nil, nil
		}
	}
	v, _ := l.(*netlink.Vlan)
	return v, nil
}

// inPod finds a port's link in its pod, which is completed if it was half made. One of another
// VLAN, or of another trunk, is what the port was before: it is removed.
func inPod(pod *podif.Namespace, r plug.Ref, trunk *netlink.LinkAttrs) (netlink.Link, error) {
	v, err := ofPort(pod, r)
	if err != nil || v == nil {
		return nil, err
	}
	if v.VlanId != r.VLAN || v.ParentIndex != trunk.Index {
		return nil, removeLink(pod, v)
	}
	if v.Alias == "" {
		return v, mark(pod, r, v, "")
	}
	return v, nil
}

// add makes a port's link in its pod.
func (p *Plugger) add(pod *podif.Namespace, w plug.Want, trunk *netlink.LinkAttrs) (netlink.Link, error) {
	if other, err := pod.Link(w.Pod.IfName); err != nil {
		return nil, err
	} else if other != nil {
		return nil, fmt.Errorf("%s in %s: %w", w.Pod.IfName, pod.Path, plug.ErrInterfaceExists)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.HardwareAddr, attrs.Group = w.Pod.IfName, trunk.Index, w.Interface.MAC, plug.LinkGroup
	attrs.Namespace = netlink.NsFd(pod.NS)
	err := p.node.NL.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: w.VLAN, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, fmt.Errorf("make VLAN %d on %s: %w: the node's kernel has no VLANs (module 8021q): %w", w.VLAN, trunk.Name, plug.ErrNotReady, err)
	case errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("%w: VLAN %d on %s is in another pod, or %s came into this one meanwhile", plug.ErrPortInUse, w.VLAN, trunk.Name, w.Pod.IfName)
	case err != nil:
		return nil, fmt.Errorf("make VLAN %d on %s in %s: %w", w.VLAN, trunk.Name, pod.Path, err)
	}
	if err := failpoint.Hit("plug.vlan.made.after"); err != nil {
		return nil, err
	}
	l, err := pod.NL.LinkByName(w.Pod.IfName)
	if err != nil {
		return nil, fmt.Errorf("look up %s just made in %s: %w", w.Pod.IfName, pod.Path, err)
	}
	return l, mark(pod, w.Ref, l, "")
}

// mark writes a port's mark on its link, with more behind it.
func mark(pod *podif.Namespace, r plug.Ref, l netlink.Link, more string) error {
	if err := pod.NL.LinkSetAlias(rtnl.LinkRef(l.Attrs().Index), r.Mark()+more); err != nil {
		return fmt.Errorf("mark %s in %s: %w", l.Attrs().Name, pod.Path, err)
	}
	return failpoint.Hit("plug.vlan.marked.after")
}

// handOver notes that a link is complete, and a machine's runtime's from now on.
func handOver(pod *podif.Namespace, r plug.Ref, l netlink.Link) error {
	return mark(pod, r, l, hostlink.HandedOver)
}

// handedOver tells whether a link is a machine's runtime's by now.
func handedOver(l netlink.Link) bool { return strings.HasSuffix(l.Attrs().Alias, hostlink.HandedOver) }

// remove removes a port's link from its pod, and the rules that lead to its table.
func remove(pod *podif.Namespace, r plug.Ref) error {
	v, err := ofPort(pod, r)
	if err != nil || v == nil || v.Alias == "" && v.VlanId != r.VLAN {
		return err
	}
	if err := failpoint.Hit("plug.vlan.removed.before"); err != nil {
		return err
	}
	return removeLink(pod, v)
}

func removeLink(pod *podif.Namespace, v *netlink.Vlan) error {
	if err := pod.Forget(v.Index); err != nil {
		return err
	}
	if err := pod.NL.LinkDel(rtnl.LinkRef(v.Index)); err != nil && !rtnl.IsNoLink(err) {
		return fmt.Errorf("remove %s in %s: %w", v.Name, pod.Path, err)
	}
	return failpoint.Hit("plug.vlan.removed.after")
}

// check notes how a port's link in its pod differs from what is wanted. A trunk of nil is not
// known. Of a link that is a machine's runtime's only its VLAN is compared.
func check(pod *podif.Namespace, w plug.Want, trunk *netlink.LinkAttrs, found *plug.Differences) error {
	v, err := ofPort(pod, w.Ref)
	switch {
	case err != nil:
		return err
	case v == nil || v.Alias == "":
		found.Add("the pod lacks the port's link")
	case v.VlanId != w.VLAN:
		found.Add("%s has VLAN %d, not %d", v.Name, v.VlanId, w.VLAN)
	case trunk != nil && v.ParentIndex != trunk.Index:
		found.Add("%s is a VLAN of another link than the trunk %s", v.Name, trunk.Name)
	case handedOver(v):
		return nil
	case v.Name != w.Pod.IfName:
		found.Add("the port's link is called %s in the pod, not %s", v.Name, w.Pod.IfName)
	}
	return pod.Check(w.Pod.IfName, w.Interface, found)
}
