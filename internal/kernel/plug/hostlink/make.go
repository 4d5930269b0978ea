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

// Link describes a veth's end on the node.
type Link struct {
	Name       string
	Index      int
	MAC        net.HardwareAddr
	HandedOver bool // its other end is a machine's runtime's by now
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
		same, err := leadsTo(l, w, pod)
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
	if errors.Is(err, unix.EEXIST) && w.Binding == plug.BindingBridge {
		return Link{}, fmt.Errorf("%s in %s: %w; where it is the machine's runtime's, only a new pod gets the port again", w.Pod.IfName, pod.Path, plug.ErrInterfaceExists)
	}
	if errors.Is(err, unix.EEXIST) {
		return Link{}, fmt.Errorf("%s in %s: %w", w.Pod.IfName, pod.Path, plug.ErrInterfaceExists)
	}
	if err != nil {
		return Link{}, fmt.Errorf("make link %s with peer %s in %s: %w", name, w.Pod.IfName, pod.Path, err)
	}
	return n.mark(w.Ref, name)
}

// leadsTo tells whether a link's other end is a pod's interface. A machine's runtime may call
// that as it likes.
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

// HandedOver ends the mark of a link that is a machine's runtime's by now, or whose other end is.
const HandedOver = " handed-over"

// HandOver notes that the pod's end of a link is complete, and a machine's runtime's from now
// on. ToPod tells so of the link later, also after a restart.
func (n *Node) HandOver(r plug.Ref, l Link) error {
	if err := n.NL.LinkSetAlias(rtnl.LinkRef(l.Index), r.Mark()+HandedOver); err != nil {
		return fmt.Errorf("mark %s as handed over: %w", l.Name, err)
	}
	return failpoint.Hit("plug.bridge.handed-over")
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
	return Link{Name: a.Name, Index: a.Index, MAC: a.HardwareAddr, HandedOver: strings.HasSuffix(a.Alias, HandedOver)}, nil
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
