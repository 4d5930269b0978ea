package hostlink

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/podif"
)

var _ = failpoint.Register("plug.link.made", "plug.link.marked")

// Link describes a veth's end on the node.
type Link struct {
	Name  string
	Index int
	MAC   net.HardwareAddr
}

// ToPod makes a veth whose one end is name on the node and whose other end is the pod's
// interface, or finds the one that is there. Errors: plug.ErrInterfaceExists,
// plug.ErrNameTaken, plug.ErrPortInUse.
func (n *Node) ToPod(w plug.Want, name string, pod *podif.Namespace) (Link, error) {
	l, err := n.mine(w.Ref, name)
	if err != nil {
		return Link{}, err
	}
	if l != nil {
		same, err := leadsTo(l, w.Pod.IfName, pod)
		if err != nil {
			return Link{}, err
		}
		if same {
			return n.resize(l, w.Interface.MTU)
		}
		// Its other end is in a sandbox that is gone or was made anew.
		if err := n.delete(l); err != nil {
			return Link{}, err
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group = name, w.Interface.MTU, plug.LinkGroup
	attrs.HardwareAddr = deriveMAC(name, w.PortID)
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerMTU = w.Pod.IfName, uint32(w.Interface.MTU)
	veth.PeerHardwareAddr = w.Interface.MAC
	veth.PeerNamespace = netlink.NsFd(pod.NS)
	err = n.NL.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		return Link{}, fmt.Errorf("%s in %s: %w", w.Pod.IfName, pod.Path, plug.ErrInterfaceExists)
	}
	if err != nil {
		return Link{}, fmt.Errorf("make link %s with peer %s in %s: %w", name, w.Pod.IfName, pod.Path, err)
	}
	return n.mark(w.Ref, name)
}

// leadsTo tells whether a link's other end is a pod's interface.
func leadsTo(l netlink.Link, ifName string, pod *podif.Namespace) (bool, error) {
	peer, err := pod.Link(ifName)
	if err != nil || peer == nil {
		return false, err
	}
	h, p := l.Attrs(), peer.Attrs()
	return l.Type() == "veth" && peer.Type() == "veth" && h.ParentIndex == p.Index && p.ParentIndex == h.Index, nil
}

// Between makes a veth whose two ends are on the node, or finds the one that is there.
// Errors: plug.ErrNameTaken, plug.ErrPortInUse.
func (n *Node) Between(w plug.Want, name, peer string) (a, b Link, err error) {
	one, err := n.mine(w.Ref, name)
	if err != nil {
		return a, b, err
	}
	if one != nil {
		// The peer may be without a mark still.
		other, err := n.Find(peer)
		if err != nil {
			return a, b, err
		}
		if other == nil || other.Attrs().ParentIndex != one.Attrs().Index {
			if err := n.delete(one); err != nil {
				return a, b, err
			}
			one = nil
		}
	}
	if one == nil {
		if other, err := n.mine(w.Ref, peer); err != nil {
			return a, b, err
		} else if other != nil {
			if err := n.delete(other); err != nil {
				return a, b, err
			}
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.Group = name, w.Interface.MTU, plug.LinkGroup
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerMTU = peer, uint32(w.Interface.MTU)
		err := n.NL.LinkAdd(veth)
		if errors.Is(err, unix.EEXIST) {
			return a, b, fmt.Errorf("%w: %s or %s", plug.ErrNameTaken, name, peer)
		}
		if err != nil {
			return a, b, fmt.Errorf("make link %s with peer %s: %w", name, peer, err)
		}
	}
	// The peer's group is not set when it is made. It is known by the name and by this end.
	if a, err = n.mark(w.Ref, name); err != nil {
		return a, b, err
	}
	other, err := n.NL.LinkByName(peer)
	if err != nil {
		return a, b, fmt.Errorf("look up %s just made: %w", peer, err)
	}
	if err := n.NL.LinkSetGroup(rtnl.LinkRef(other.Attrs().Index), plug.LinkGroup); err != nil {
		return a, b, fmt.Errorf("mark %s: %w", peer, err)
	}
	b, err = n.mark(w.Ref, peer)
	return a, b, err
}

// Bridge makes a Linux bridge, or finds the one that is there. It learns no addresses (as it
// joins two links, all is sent on at once, also after a machine has moved), and the node
// itself has no part in it. Errors: plug.ErrNameTaken, plug.ErrPortInUse.
func (n *Node) Bridge(w plug.Want, name string) (Link, error) {
	l, err := n.mine(w.Ref, name)
	if err != nil {
		return Link{}, err
	}
	if l == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Group = name, plug.LinkGroup
		ageing, snooping := uint32(0), false
		err := n.NL.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, AgeingTime: &ageing, MulticastSnooping: &snooping})
		if err != nil {
			return Link{}, fmt.Errorf("make bridge %s: %w", name, err)
		}
	}
	return n.mark(w.Ref, name)
}

// mark writes for whom a link was made.
func (n *Node) mark(r plug.Ref, name string) (Link, error) {
	if err := failpoint.Hit("plug.link.made"); err != nil {
		return Link{}, err
	}
	l, err := n.NL.LinkByName(name)
	if err != nil {
		return Link{}, fmt.Errorf("look up %s just made: %w", name, err)
	}
	a := l.Attrs()
	if a.Alias != r.Mark() {
		if err := n.NL.LinkSetAlias(rtnl.LinkRef(a.Index), r.Mark()); err != nil {
			return Link{}, fmt.Errorf("mark %s: %w", name, err)
		}
	}
	if err := failpoint.Hit("plug.link.marked"); err != nil {
		return Link{}, err
	}
	return Link{Name: name, Index: a.Index, MAC: a.HardwareAddr}, nil
}

// resize gives a link that is there the wanted MTU.
func (n *Node) resize(l netlink.Link, mtu int) (Link, error) {
	a := l.Attrs()
	if mtu != 0 && a.MTU != mtu {
		if err := n.NL.LinkSetMTU(rtnl.LinkRef(a.Index), mtu); err != nil {
			return Link{}, fmt.Errorf("give %s the MTU %d: %w", a.Name, mtu, err)
		}
	}
	return Link{Name: a.Name, Index: a.Index, MAC: a.HardwareAddr}, nil
}

// Join makes a link a port of a Linux bridge.
func (n *Node) Join(l, bridge Link) error {
	if err := n.NL.LinkSetMasterByIndex(rtnl.LinkRef(l.Index), bridge.Index); err != nil {
		return fmt.Errorf("join %s to %s: %w", l.Name, bridge.Name, err)
	}
	return nil
}

// deriveMAC makes the MAC address of the node's end of a link: locally administered, and
// another than the port's own, since a bridge keeps frames for its links to itself.
func deriveMAC(name, port string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name + "\x00" + port))
	mac := net.HardwareAddr(bytes.Clone(sum[:6]))
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}
