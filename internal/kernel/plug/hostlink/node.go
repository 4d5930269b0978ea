// Package hostlink makes and removes the links on the node that lead to ports: veths to
// pods, veths between bridges, and Linux bridges. Each carries the mark of its port from
// a moment after its creation on, and the link group of ports from its creation on, so that
// what a program left that ended in between is found (package plug, "Ownership").
package hostlink

import (
	"fmt"
	"net"
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

	Sysctls string // the folder of the kernel's settings; empty: /proc/sys
}

// Open binds to the network namespace at a path, or to the calling thread's if that is empty.
func Open(path string) (*Node, error) {
	var ns netns.NsHandle
	var err error
	if path == "" {
		ns, err = netns.Get()
	} else {
		ns, err = rtnl.OpenNetns(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
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

// Close releases the handles.
func (n *Node) Close() {
	n.NL.Close()
	_ = n.NS.Close()
}

// Find looks a link up; it is nil when missing.
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

// mine looks a link up that this port may have. nil: there is none, or one half made, which
// is removed first. Errors: plug.ErrNameTaken, plug.ErrPortInUse.
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

// Check notes when a link of the port is missing or another's. The link is nil then.
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
		found.Add("link %s is half made", name)
		return nil, nil
	}
	return l, nil
}

// CheckPair notes when a port's veth is down on the node, or leads to something else than the pod's
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
		found.Add("%s on the node and %s in the pod are not one link", host.Name, w.Pod.IfName)
	}
	return nil
}

// ForgetInPod removes the rules of a port's interface in the pod that a veth leads to, if that is there:
// they are nothing that anybody meets once the interface is gone, so what fails is not told.
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

// Remove deletes links of the port, with their other ends if they are veths, and what is
// half made under their names. One that is missing, or another's, is no error.
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

// RemoveHalfMade deletes a link that was being made when the program ended.
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

// List names the ports that have links of a kind, and links half made whose names begin with
// one of some prefixes. Each port is named once, with the first of its links.
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
