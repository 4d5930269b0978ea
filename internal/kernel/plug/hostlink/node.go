// Package hostlink creates and removes the links of ports on the node: veths to pods, veths between
// bridges, and Linux bridges. Each is created in the link group of ports, and gets the port's alias
// right after that, so that leftovers of an interrupted program are found (package plug,
// "Ownership").
package hostlink

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Node is the node's network namespace.
type Node struct {
	NS netns.NsHandle
	ID rtnl.NetnsID
	NL *netlink.Handle

	Sysctls string // the sysctl folder; empty: /proc/sys
}

// Open opens the network namespace at a path; empty: that of the calling thread.
func Open(path string) (*Node, error) {
	ns, err := rtnl.OpenNodeNetns(path)
	if err != nil {
		return nil, err
	}
	n := &Node{NS: ns}
	if n.ID, err = rtnl.Identify(ns); err == nil {
		n.NL, err = rtnl.Handle(ns)
	}
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("open netlink in the node's network namespace: %w", err)
	}
	return n, nil
}

// Close closes the handles.
func (n *Node) Close() {
	n.NL.Close()
	_ = n.NS.Close()
}

// Find returns a link, or nil if it is missing.
func (n *Node) Find(name string) (netlink.Link, error) {
	l, err := n.NL.LinkByName(name)
	if rtnl.IsNoLink(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", name, err)
	}
	return l, nil
}

// mine returns a link of the port, or nil if there is none. It removes an incomplete one. Errors:
// plug.ErrNameTaken, plug.ErrPortInUse.
func (n *Node) mine(r plug.Ref, name string) (netlink.Link, error) {
	l, err := n.Find(name)
	if err != nil || l == nil {
		return nil, err
	}
	owner, err := r.OwnerOf(l.Attrs())
	if err != nil {
		return nil, err
	}
	if owner == plug.HalfMade {
		return nil, n.delete(l)
	}
	return l, nil
}

// Check adds a difference if the link is missing, incomplete or not the port's, and returns nil
// then.
func (n *Node) Check(r plug.Ref, name string, found *plug.Differences) (netlink.Link, error) {
	l, err := n.Find(name)
	if err != nil {
		return nil, err
	}
	if l == nil {
		found.Add("link %s is missing on the node", name)
		return nil, nil
	}
	switch owner, err := r.OwnerOf(l.Attrs()); {
	case err != nil:
		found.Add("%v", err)
		return nil, nil
	case owner == plug.HalfMade:
		found.Add("link %s is incomplete", name)
		return nil, nil
	}
	return l, nil
}

// CheckPair adds a difference if a port's veth is down on the node, or if its peer is not the pod's
// interface.
func CheckPair(w plug.Want, host *netlink.LinkAttrs, pod *podif.Namespace, found *plug.Differences) error {
	if host.Flags&net.FlagUp == 0 {
		found.Add("%s is down", host.Name)
	}
	peer, err := pod.Peer(host)
	if err != nil {
		return err
	}
	if peer == nil || w.Binding != plug.BindingBridge && peer.Attrs().Name != w.Pod.IfName {
		found.Add("%s on the node and %s in the pod are not peers", host.Name, w.Pod.IfName)
	}
	return nil
}

// ForgetInPod removes the policy rules of a port's interface from the pod that a veth leads to. It
// ignores errors, because such rules match nothing once the interface is gone.
func (n *Node) ForgetInPod(r plug.Ref, name string) {
	pod, err := podif.OpenPod(r.Pod, n.ID)
	if err != nil {
		return
	}
	defer pod.Close()
	host, err := n.Find(name)
	if err != nil || host == nil {
		return
	}
	if owner, _ := r.OwnerOf(host.Attrs()); owner != plug.Mine {
		return
	}
	if l, err := pod.Peer(host.Attrs()); err == nil && l != nil {
		_ = pod.Forget(l.Attrs().Index)
	}
}

// Remove deletes links of the port, with their peers if they are veths, and incomplete links with
// their names. It ignores links that are missing or belong to another port.
func (n *Node) Remove(r plug.Ref, names ...string) error {
	for _, name := range names {
		l, err := n.Find(name)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		if owner, _ := r.OwnerOf(l.Attrs()); owner == plug.Others {
			continue
		}
		if err := n.delete(l); err != nil {
			return err
		}
	}
	return nil
}

// RemoveHalfMade deletes an incomplete link.
func (n *Node) RemoveHalfMade(name string) error {
	l, err := n.Find(name)
	if err != nil || l == nil || l.Attrs().Group != plug.LinkGroup || l.Attrs().Alias != "" {
		return err
	}
	return n.delete(l)
}

func (n *Node) delete(l netlink.Link) error {
	if err := n.NL.LinkDel(rtnl.LinkRef(l.Attrs().Index)); err != nil && !rtnl.IsNoLink(err) {
		return fmt.Errorf("remove %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// Raise turns IPv6 off on links, so that the node takes no address there, and sets them up.
func (n *Node) Raise(links ...Link) error {
	for _, l := range links {
		err := rtnl.SetIPv6(n.NS, n.Sysctls, l.Name, "disable_ipv6", "1")
		if err != nil && !errors.Is(err, os.ErrNotExist) { // the kernel has no IPv6
			return fmt.Errorf("switch IPv6 off on %s: %w", l.Name, err)
		}
		if err := n.NL.LinkSetUp(rtnl.LinkRef(l.Index)); err != nil {
			return fmt.Errorf("set %s up: %w", l.Name, err)
		}
	}
	return nil
}

// List lists the ports with links of a kind, and incomplete links with one of the name prefixes. It
// lists each port once, with its first link.
func (n *Node) List(kind plug.Kind, prefixes ...string) ([]plug.Found, error) {
	links, err := rtnl.Whole(n.NL.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var list []plug.Found
	seen := map[string]bool{}
	for _, l := range links {
		a := l.Attrs()
		if a.Group != plug.LinkGroup {
			continue
		}
		r, ok := plug.ParseMark(a.Alias)
		switch {
		case a.Alias == "" && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(a.Name, p) }):
			list = append(list, plug.Found{HalfMade: true, Link: a.Name, Ref: plug.Ref{Kind: kind}})
		case ok && r.Kind == kind && !seen[r.Attachment+" "+r.PortID]:
			seen[r.Attachment+" "+r.PortID] = true
			list = append(list, plug.Found{Ref: r, Link: a.Name})
		}
	}
	return list, nil
}
