package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// tunnelData is the data of a recorded tunnel in the notation of ip-link(8).
type tunnelData struct {
	External bool   `json:"external"`
	Proto    string `json:"proto"`
	Local    string `json:"local"`
	Remote   string `json:"remote"`
	TTL      uint8  `json:"ttl"`
	Encap    *struct {
		Sport uint16 `json:"sport"`
		Dport uint16 `json:"dport"`
	} `json:"encap"`
}

// IsTunnel reports whether a link belongs to an Egress of Coil.
func (l Link) IsTunnel() bool { return l.Kind == "ipip" || l.Kind == "ip6tnl" || l.Kind == "dummy" }

// fallbacks are the devices that the kernel makes with each namespace, by kind.
var fallbacks = map[string]string{"ipip": "tunl0", "ip6tnl": "ip6tnl0"}

// encapFoU is TUNNEL_ENCAP_FOU (linux/if_tunnel.h).
const encapFoU = 1

// addTunnel replays a link of an Egress. It needs a kernel with Foo-over-UDP.
func addTunnel(h *netlink.Handle, l Link) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = l.Name, l.MTU
	if l.Kind == "dummy" {
		return h.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	}
	var d tunnelData
	if err := json.Unmarshal(l.Data, &d); err != nil {
		return err
	}
	if !d.External && d.Encap == nil {
		return renameFallback(h, fallbacks[l.Kind], l.Name)
	}
	local, remote := net.ParseIP(d.Local), net.ParseIP(d.Remote) // nil: any
	var link netlink.Link
	if l.Kind == "ip6tnl" {
		t := &netlink.Ip6tnl{LinkAttrs: attrs, Local: local, Remote: remote, Ttl: d.TTL, FlowBased: d.External, Flags: 1} // without encapsulation limit
		if d.Encap != nil {
			t.EncapType, t.EncapSport, t.EncapDport = encapFoU, d.Encap.Sport, d.Encap.Dport
		}
		link = t
	} else {
		t := &netlink.Iptun{LinkAttrs: attrs, Local: local, Remote: remote, Ttl: d.TTL, PMtuDisc: 1, FlowBased: d.External}
		if d.External {
			t.Proto = unix.IPPROTO_IPIP
		}
		if d.Encap != nil {
			t.EncapType, t.EncapSport, t.EncapDport = encapFoU, d.Encap.Sport, d.Encap.Dport
		}
		link = t
	}
	if err := h.LinkAdd(link); err != nil {
		return err
	}
	made, err := h.LinkByName(l.Name)
	if err != nil {
		return err
	}
	if !d.External {
		if err := h.LinkSetMTU(made, l.MTU); err != nil {
			return err
		}
	}
	return h.LinkSetUp(made)
}

// renameFallback gives the kernel's own device another name. Kernels may be set to make none.
func renameFallback(h *netlink.Handle, from, to string) error {
	l, err := h.LinkByName(from)
	if rtnl.IsNoLink(err) || from == to {
		return nil
	}
	if err != nil {
		return err
	}
	return h.LinkSetName(l, to)
}

// receiveFoU makes the FoU ports of a pod with tunnels, one for each family of its addresses.
func receiveFoU(h *netlink.Handle, p Pod) error {
	for _, l := range p.Links {
		var d tunnelData
		if l.Kind != "ipip" && l.Kind != "ip6tnl" || json.Unmarshal(l.Data, &d) != nil || d.Encap == nil {
			continue
		}
		for _, a := range p.Addresses() {
			if err := receive(h, a.Is6(), int(d.Encap.Dport)); err != nil {
				return err
			}
		}
		return nil
	}
	return nil
}

// receive makes a FoU port.
func receive(h *netlink.Handle, ipv6 bool, port int) error {
	f := netlink.Fou{Family: unix.AF_INET, Port: port, Protocol: unix.IPPROTO_IPIP, EncapType: netlink.FOU_ENCAP_DIRECT}
	if ipv6 {
		f.Family, f.Protocol = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	if err := h.FouAdd(f); err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EALREADY) && !errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("receive FoU at port %d: %w", port, err)
	}
	return nil
}
