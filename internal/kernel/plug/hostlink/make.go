package hostlink

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

var _ = failpoint.Register("plug.link.made", "plug.link.marked", "plug.bridge.handed-over")

// Link describes the node's end of a veth.
type Link struct {
	Name       string
	Index      int
	MAC        net.HardwareAddr
	HandedOver bool // the VM runtime owns the other end
}

// ToPod creates a veth between name on the node and the pod's interface, or returns the existing
// one. Errors: plug.ErrInterfaceExists, plug.ErrNameTaken, plug.ErrPortInUse.
func (n *Node) ToPod(w plug.Want, name string, pod *podif.Namespace) (Link, error) {
	l, err := n.mine(w.Ref, name)
	if err != nil {
		return Link{}, err
	}
	if l != nil {
		same, err := leadsTo(l, w, pod)
		if err != nil {
			return Link{}, err
		}
		if same {
			return n.resize(l, w.Interface.MTU)
		}
		// Its peer is in an earlier sandbox.
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
	if errors.Is(err, unix.EEXIST) && w.Binding == plug.BindingBridge {
		return Link{}, fmt.Errorf("%s in %s: %w; if a VM runtime owns it, recreate the pod", w.Pod.IfName, pod.Path, plug.ErrInterfaceExists)
	}
	if errors.Is(err, unix.EEXIST) {
		return Link{}, fmt.Errorf("%s in %s: %w", w.Pod.IfName, pod.Path, plug.ErrInterfaceExists)
	}
	if err != nil {
		return Link{}, fmt.Errorf("create link %s with peer %s in %s: %w", name, w.Pod.IfName, pod.Path, err)
	}
	return n.mark(w.Ref, name)
}

// leadsTo reports whether the peer of a link is a pod's interface. A VM runtime may have renamed
// the peer.
func leadsTo(l netlink.Link, w plug.Want, pod *podif.Namespace) (bool, error) {
	if l.Type() != "veth" {
		return false, nil
	}
	peer, err := pod.Peer(l.Attrs())
	if err != nil || peer == nil {
		return false, err
	}
	return w.Binding == plug.BindingBridge || peer.Attrs().Name == w.Pod.IfName, nil
}

// HandedOver is the last word of the alias of a link that a VM runtime owns at either end.
const HandedOver = " handed-over"

// HandOver records that the pod's end of a link is complete and belongs to the VM runtime from now
// on. ToPod reports it, also after a restart.
func (n *Node) HandOver(r plug.Ref, l Link) error {
	if err := n.NL.LinkSetAlias(rtnl.LinkRef(l.Index), r.Mark()+HandedOver); err != nil {
		return fmt.Errorf("set the alias of %s to handed over: %w", l.Name, err)
	}
	return failpoint.Hit("plug.bridge.handed-over")
}

// Between creates a veth with both ends on the node, or returns the existing one. Errors:
// plug.ErrNameTaken, plug.ErrPortInUse.
func (n *Node) Between(w plug.Want, name, peer string) (a, b Link, err error) {
	one, err := n.mine(w.Ref, name)
	if err != nil {
		return a, b, err
	}
	if one != nil {
		// The peer may lack its alias.
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
			return a, b, fmt.Errorf("create link %s with peer %s: %w", name, peer, err)
		}
	}
	// The kernel does not set the group of the peer on creation. The peer is identified by its name
	// and by this end.
	if a, err = n.mark(w.Ref, name); err != nil {
		return a, b, err
	}
	other, err := n.NL.LinkByName(peer)
	if err != nil {
		return a, b, fmt.Errorf("look up the new link %s: %w", peer, err)
	}
	if err := n.NL.LinkSetGroup(rtnl.LinkRef(other.Attrs().Index), plug.LinkGroup); err != nil {
		return a, b, fmt.Errorf("set the link group of %s: %w", peer, err)
	}
	b, err = n.mark(w.Ref, peer)
	return a, b, err
}

// Bridge creates a Linux bridge, or returns the existing one. It learns no addresses: it floods
// between its two links, so that a migrated machine is reachable at once. The node has no address
// on it. Errors: plug.ErrNameTaken, plug.ErrPortInUse.
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
			return Link{}, fmt.Errorf("create bridge %s: %w", name, err)
		}
	}
	return n.mark(w.Ref, name)
}

// mark writes the owner of a link into its alias.
func (n *Node) mark(r plug.Ref, name string) (Link, error) {
	if err := failpoint.Hit("plug.link.made"); err != nil {
		return Link{}, err
	}
	l, err := n.NL.LinkByName(name)
	if err != nil {
		return Link{}, fmt.Errorf("look up the new link %s: %w", name, err)
	}
	a := l.Attrs()
	if a.Alias != r.Mark() {
		if err := n.NL.LinkSetAlias(rtnl.LinkRef(a.Index), r.Mark()); err != nil {
			return Link{}, fmt.Errorf("set the alias of %s: %w", name, err)
		}
	}
	if err := failpoint.Hit("plug.link.marked"); err != nil {
		return Link{}, err
	}
	return Link{Name: name, Index: a.Index, MAC: a.HardwareAddr}, nil
}

// resize sets the MTU of an existing link.
func (n *Node) resize(l netlink.Link, mtu int) (Link, error) {
	a := l.Attrs()
	if _, err := (rtnl.Link{Name: a.Name, MTU: mtu}).Set(n.NL, a); err != nil {
		return Link{}, err
	}
	return Link{Name: a.Name, Index: a.Index, MAC: a.HardwareAddr, HandedOver: strings.HasSuffix(a.Alias, HandedOver)}, nil
}

// Join adds a link to a Linux bridge.
func (n *Node) Join(l, bridge Link) error {
	if err := n.NL.LinkSetMasterByIndex(rtnl.LinkRef(l.Index), bridge.Index); err != nil {
		return fmt.Errorf("add %s to bridge %s: %w", l.Name, bridge.Name, err)
	}
	return nil
}

// deriveMAC returns the MAC address of the node's end: locally administered, and different from the
// port's own, because a bridge delivers frames for its links' own addresses locally.
func deriveMAC(name, port string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name + "\x00" + port))
	mac := net.HardwareAddr(bytes.Clone(sum[:6]))
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}
