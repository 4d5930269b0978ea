package vlan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hostlink"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// mostSpaces limits the number of namespaces that are searched. It is a multiple of the pods of a node.
const mostSpaces = 4096

// spaces opens the network namespaces that may contain VLAN links: the node's and those of pods. Calls about one
// namespace take turns.
type spaces struct {
	node  *hostlink.Node
	dir   string     // where network namespaces of pods are mounted
	turns plug.Turns // by namespace, so that no call sees incomplete links of another call
}

// each calls f for the node's namespace and for each namespace in the folder of pods, until f
// returns more == false. The kernel does not report which namespaces hold VLANs of a trunk, so all
// are searched. Links in namespaces elsewhere are not found; they are unplugged by the record of
// their pod.
func (n *spaces) each(ctx context.Context, f func(s *podif.Namespace) (more bool, err error)) error {
	more, err := f(n.home())
	if err != nil || !more {
		return err
	}
	entries, err := os.ReadDir(n.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no pod has started yet
	}
	if err != nil {
		return fmt.Errorf("list network namespaces: %w", err)
	}
	seen := map[rtnl.NetnsID]bool{n.node.ID: true}
	for _, e := range entries {
		if ctx.Err() != nil {
			return fmt.Errorf("look for VLANs in %s: %w", n.dir, context.Cause(ctx))
		}
		s, err := podif.Open(filepath.Join(n.dir, e.Name()))
		if errors.Is(err, rtnl.ErrNoNetns) || errors.Is(err, rtnl.ErrNotNetns) {
			continue // it is being created or removed
		}
		if err != nil {
			return err
		}
		id, err := rtnl.Identify(s.NS)
		more := true
		if err == nil && !seen[id] {
			seen[id] = true
			more, err = f(s)
		}
		s.Close()
		if err != nil || !more {
			return err
		}
		if len(seen) > mostSpaces {
			return fmt.Errorf("look for VLANs in %s: more than %d network namespaces", n.dir, mostSpaces)
		}
	}
	return nil
}

// home is the node's own namespace. Do not close it.
func (n *spaces) home() *podif.Namespace {
	return &podif.Namespace{Path: nodePath, NS: n.node.NS, NL: n.node.NL, Sysctls: n.node.Sysctls}
}

// nodePath stands in for a path of the node's own namespace.
const nodePath = "the node's own network namespace"

// noNode is the result of nodeIn for a namespace without links whose parent is on the node.
const noNode = -2

// nodeIn returns the ID that a namespace uses for the node's namespace, which VLAN links there
// carry as that of their parent (IFLA_LINK_NETNSID). It is -1 for the node's namespace itself. List
// the links first: the kernel assigns the ID when they are listed.
func (n *spaces) nodeIn(s *podif.Namespace) (int, error) {
	if s.Path == nodePath {
		return -1, nil
	}
	id, err := s.NL.GetNetNsIdByFd(int(n.node.NS))
	switch {
	case err != nil:
		return noNode, fmt.Errorf("look up the ID of the node's namespace in %s: %w", s.Path, err)
	case id < 0:
		return noNode, nil
	}
	return id, nil
}

// vlanOf returns the link of a VLAN in a namespace, or nil.
func (n *spaces) vlanOf(s *podif.Namespace, w plug.Want, trunk *netlink.LinkAttrs) (*netlink.Vlan, error) {
	links, err := rtnl.Whole(s.NL.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links in %s: %w", s.Path, err)
	}
	node, err := n.nodeIn(s)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if v, ok := l.(*netlink.Vlan); ok && v.VlanId == w.VLAN && v.ParentIndex == trunk.Index && v.NetNsID == node {
			return v, nil
		}
	}
	return nil, nil
}

// checkOwner returns nil if a VLAN link belongs to the port itself, or an error with its owner.
func checkOwner(s *podif.Namespace, l *netlink.Vlan, w plug.Want, trunk *netlink.LinkAttrs) (again bool, err error) {
	what := fmt.Sprintf("VLAN %d of the trunk %s is %s in %s", w.VLAN, trunk.Name, l.Name, s.Path)
	other, ok := plug.ParseMark(l.Alias)
	switch {
	case l.Group == plug.LinkGroup && l.Alias == "":
		return true, fmt.Errorf("%w: %s, which is incomplete", plug.ErrNameTaken, what)
	case l.Group != plug.LinkGroup || !ok:
		return false, fmt.Errorf("%w: %s, which was not created by Berth", plug.ErrNameTaken, what)
	case other.PortID != w.PortID:
		return false, fmt.Errorf("%w: %s, which belongs to port %s of %s", plug.ErrNameTaken, what, other.PortID, other.Attachment)
	case other.Attachment != w.Attachment:
		return false, fmt.Errorf("%w: %s uses it: %s", plug.ErrPortInUse, other.Attachment, what)
	}
	return true, nil
}

// enter opens the namespace of a pod and waits for its turn there.
func (n *spaces) enter(ctx context.Context, where plug.Pod) (pod *podif.Namespace, leave func(), err error) {
	pod, err = podif.OpenPod(where, n.node.ID)
	if err != nil {
		return nil, nil, err
	}
	pod.Sysctls = n.node.Sysctls
	done, err := n.turn(ctx, pod)
	if err != nil {
		pod.Close()
		return nil, nil, err
	}
	return pod, func() { done(); pod.Close() }, nil
}

// turn waits for the turn of a namespace. It is the same for all paths of the namespace.
func (n *spaces) turn(ctx context.Context, s *podif.Namespace) (done func(), err error) {
	id, err := rtnl.Identify(s.NS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	return n.turns.Take(ctx, fmt.Sprintf("network namespace %d:%d", id.Dev, id.Inode))
}
