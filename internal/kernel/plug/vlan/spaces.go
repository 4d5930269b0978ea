package vlan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// mostSpaces limits the namespaces that are searched. It is a multiple of the pods of a node.
const mostSpaces = 4096

// each calls f for the node's namespace and for each namespace in the folder of pods, until f
// returns more == false. The kernel does not report which namespaces hold VLANs of a trunk, so all
// are searched. Links in namespaces elsewhere are not found; they are unplugged by the record of
// their pod.
func (p *Plugger) each(ctx context.Context, f func(s *podif.Namespace) (more bool, err error)) error {
	more, err := f(p.home())
	if err != nil || !more {
		return err
	}
	entries, err := os.ReadDir(p.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no pod has started yet
	}
	if err != nil {
		return fmt.Errorf("list network namespaces: %w", err)
	}
	seen := map[rtnl.NetnsID]bool{p.node.ID: true}
	for _, e := range entries {
		if ctx.Err() != nil {
			return fmt.Errorf("look for VLANs in %s: %w", p.dir, context.Cause(ctx))
		}
		s, err := podif.Open(filepath.Join(p.dir, e.Name()))
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
			return fmt.Errorf("look for VLANs in %s: more than %d network namespaces", p.dir, mostSpaces)
		}
	}
	return nil
}

// home is the node's own namespace. Do not close it.
func (p *Plugger) home() *podif.Namespace {
	return &podif.Namespace{Path: nodePath, NS: p.node.NS, NL: p.node.NL, Sysctls: p.node.Sysctls}
}

// nodePath stands in for a path of the node's own namespace.
const nodePath = "the node's own network namespace"

// noNode is the result of nodeIn for a namespace without links whose parent is on the node.
const noNode = -2

// nodeIn returns the ID that a namespace uses for the node's namespace, which VLAN links there
// carry as that of their parent (IFLA_LINK_NETNSID). It is -1 for the node's namespace itself. List
// the links first: the kernel assigns the ID when they are listed.
func (p *Plugger) nodeIn(s *podif.Namespace) (int, error) {
	if s.Path == nodePath {
		return -1, nil
	}
	id, err := s.NL.GetNetNsIdByFd(int(p.node.NS))
	switch {
	case err != nil:
		return noNode, fmt.Errorf("look up the ID of the node's namespace in %s: %w", s.Path, err)
	case id < 0:
		return noNode, nil
	}
	return id, nil
}

// holds finds the owner of a VLAN. again reports that the VLAN may be free soon, because its link
// is being created or removed, or was a leftover of the same port. Errors: plug.ErrNameTaken,
// plug.ErrPortInUse.
func (p *Plugger) holds(ctx context.Context, w plug.Want, trunk *netlink.LinkAttrs) (again bool, err error) {
	again = true
	err = fmt.Errorf("%w: VLAN %d of the trunk %s has a link in a network namespace outside %s", plug.ErrNameTaken, w.VLAN, trunk.Name, p.dir)
	failed := p.each(ctx, func(s *podif.Namespace) (more bool, failed error) {
		l, failed := p.vlanOf(s, w, trunk)
		if l == nil || failed != nil {
			return true, failed
		}
		again, err = whose(s, l, w, trunk)
		if err == nil { // a leftover of this port in an earlier namespace of its attachment
			return false, clean(s, w.Ref)
		}
		return false, nil
	})
	if failed != nil {
		return false, failed
	}
	return again, err
}

// vlanOf returns the link of a VLAN in a namespace, or nil.
func (p *Plugger) vlanOf(s *podif.Namespace, w plug.Want, trunk *netlink.LinkAttrs) (*netlink.Vlan, error) {
	links, err := rtnl.Whole(s.NL.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links in %s: %w", s.Path, err)
	}
	node, err := p.nodeIn(s)
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

// whose returns nil if a VLAN link belongs to the port itself, or an error that names its owner.
func whose(s *podif.Namespace, l *netlink.Vlan, w plug.Want, trunk *netlink.LinkAttrs) (again bool, err error) {
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

// List implements plug.Plugger for links in the folder of pods' namespaces and on the node. It
// skips links on the trunks of other nodes, whose pods may have their namespaces in the same
// folder.
func (p *Plugger) List(ctx context.Context) ([]plug.Found, error) {
	var list []plug.Found
	err := p.each(ctx, func(s *podif.Namespace) (more bool, err error) {
		in, err := look(s, plug.Ref{})
		if err != nil {
			return false, err
		}
		node, err := p.nodeIn(s)
		if err != nil {
			return false, err
		}
		there := slices.DeleteFunc(append(in.others, in.half...), func(v *netlink.Vlan) bool { return v.NetNsID != node })
		where := plug.Pod{}
		if s.Path != nodePath && len(there) > 0 {
			where.Netns = s.Path
			if where.NetnsID, err = rtnl.Identify(s.NS); err != nil {
				return false, fmt.Errorf("%s: %w", s.Path, err)
			}
		}
		for _, l := range there {
			r, ok := plug.ParseMark(l.Alias)
			r.Kind, r.VLAN = plug.VLAN, l.VlanId
			r.Pod.Netns, r.Pod.NetnsID = where.Netns, where.NetnsID
			list = append(list, plug.Found{Ref: r, HalfMade: !ok, Link: l.Name})
		}
		return true, nil
	})
	slices.SortStableFunc(list, plug.Found.Compare)
	return list, err
}

// Remove implements plug.Plugger.
func (p *Plugger) Remove(ctx context.Context, f plug.Found) error {
	var s *podif.Namespace
	var leave func()
	var err error
	if f.Pod.Netns == "" {
		s = p.home()
		leave, err = p.turn(ctx, s)
	} else {
		s, leave, err = p.enter(ctx, f.Pod)
	}
	switch {
	case errors.Is(err, rtnl.ErrNoNetns), errors.Is(err, rtnl.ErrNotNetns):
		return nil
	case err != nil:
		return err
	}
	defer leave()
	return clean(s, f.Ref)
}
