// Package podif sets up a port's link in a pod: it moves the link into the pod's network namespace and back, and sets
// its name, MAC address, MTU, addresses, routes, and rules that select it for packets from its addresses. It keeps
// configuration that the pod added itself.
package podif

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Namespace is an open network namespace of a pod, or another one that links are moved to and from.
type Namespace struct {
	Path string
	NS   netns.NsHandle
	NL   *netlink.Handle

	Sysctls string // the sysctl folder; empty: /proc/sys
}

// OpenPod opens a pod's namespace, which must not be the node's own. Errors: rtnl.ErrNoNetns,
// rtnl.ErrNotNetns.
func OpenPod(pod plug.Pod, node rtnl.NetnsID) (*Namespace, error) {
	ns, err := rtnl.OpenPodNetns(pod.Netns, pod.NetnsID, node)
	if err != nil {
		return nil, err
	}
	return open(pod.Netns, ns)
}

// Open opens a namespace that is not a pod's. Errors: rtnl.ErrNoNetns, rtnl.ErrNotNetns.
func Open(path string) (*Namespace, error) {
	ns, err := rtnl.OpenNetns(path)
	if err != nil {
		return nil, err
	}
	return open(path, ns)
}

func open(path string, ns netns.NsHandle) (*Namespace, error) {
	nl, err := rtnl.Handle(ns)
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("open netlink in %s: %w", path, err)
	}
	return &Namespace{Path: path, NS: ns, NL: nl}, nil
}

// Close releases the handles.
func (s *Namespace) Close() {
	s.NL.Close()
	_ = s.NS.Close()
}

// Link looks a link up by name. It returns nil if the link is missing.
func (s *Namespace) Link(name string) (netlink.Link, error) {
	l, err := s.NL.LinkByName(name)
	if rtnl.IsNoLink(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s in %s: %w", name, s.Path, err)
	}
	return l, nil
}

// Peer finds the pod's end of a veth whose other end is on the node, under any name; nil if it is not in the
// namespace.
func (s *Namespace) Peer(host *netlink.LinkAttrs) (netlink.Link, error) {
	l, err := s.NL.LinkByIndex(host.ParentIndex)
	if rtnl.IsNoLink(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up the other end of %s in %s: %w", host.Name, s.Path, err)
	}
	if l.Type() != "veth" || l.Attrs().ParentIndex != host.Index {
		return nil, nil
	}
	return l, nil
}

// Marked finds the veth with the alias of a port, under any name; nil if there is none.
func (s *Namespace) Marked(r plug.Ref) (netlink.Link, error) {
	links, err := rtnl.Whole(s.NL.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links in %s: %w", s.Path, err)
	}
	for _, l := range links {
		if other, ok := plug.ParseMark(l.Attrs().Alias); ok && l.Type() == "veth" && other.Attachment == r.Attachment && other.PortID == r.PortID {
			return l, nil
		}
	}
	return nil, nil
}
