package daemon

import (
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/rpc"
)

// The gateways of the pod side (proposal for the Amazon VPC CNI, for IPv4; datapath sets them up).
const (
	podGateway4 = "169.254.1.1"
	podGateway6 = "fe80::1"
)

// replyOf is an attachment for the plugin: its own interface, from the lease or from the
// NIC of its name, and then the other NICs. Of what other plugins made nothing is said.
func replyOf(rec attachment.Record) *rpc.AddReply {
	if rec.Chained != nil {
		return &rpc.AddReply{Chained: true, Addresses: texts(rec.Chained.Addresses)}
	}
	reply := &rpc.AddReply{
		Host:    interfaceOf(rec.HostLink, rec.HostMAC),
		Sandbox: interfaceOf(rec.Key.IfName, rec.PodMAC),
		Mtu:     uint32(rec.MTU),
	}
	routed := routedAddrs(rec)
	reply.Addresses = texts(routed)
	for _, a := range routed {
		if a.Is4() {
			reply.Routes = append(reply.Routes, &rpc.Route{Dst: podGateway4 + "/32"})
		}
		switch {
		case leadByNIC(rec, a.Is4()):
		case a.Is4():
			reply.Routes = append(reply.Routes, &rpc.Route{Dst: "0.0.0.0/0", Gateway: podGateway4})
		default:
			reply.Routes = append(reply.Routes, &rpc.Route{Dst: "::/0", Gateway: podGateway6})
		}
	}
	for _, nic := range rec.NICs {
		if !rec.Settled(nic) {
			continue
		}
		link := linkOf(nic)
		if nic.IfName != rec.Key.IfName {
			reply.Links = append(reply.Links, link)
			continue
		}
		reply.Host, reply.Sandbox, reply.Mtu = link.GetHost(), link.GetSandbox(), link.GetMtu()
		if isRouted(nic) {
			continue
		}
		reply.Routes = link.GetRoutes()
		for _, a := range link.GetAddresses() {
			reply.Addresses = append(reply.Addresses, a.GetCidr())
		}
	}
	return reply
}

// routedAddrs are the addresses of an attachment's own interface that the node routes to: those of
// the lease, or of the NIC of its name; none of a NIC that the VPC has a route to.
func routedAddrs(rec attachment.Record) []netip.Addr {
	if first := rec.First(); first != nil && isRouted(*first) {
		return rec.OwnAddrs()
	}
	return rec.Lease.Addrs()
}

// texts are addresses in CIDR form, each as a network of its own.
func texts(addrs []netip.Addr) (cidrs []string) {
	for _, a := range addrs {
		cidrs = append(cidrs, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return cidrs
}

// leadByNIC tells whether packets of a family leave the pod for elsewhere by a NIC that the VPC
// routes to.
func leadByNIC(rec attachment.Record, four bool) bool {
	return slices.ContainsFunc(rec.NICs, func(nic attachment.NIC) bool {
		return nic.DefaultRoute && !isRouted(nic) && slices.ContainsFunc(nic.Addresses, func(a attachment.NICAddress) bool {
			return a.Gateway.IsValid() && a.Gateway.Is4() == four
		})
	})
}

func interfaceOf(name string, address mac.Addr) *rpc.Interface {
	return &rpc.Interface{Name: name, Mac: address.String()}
}

func linkOf(nic attachment.NIC) *rpc.Link {
	link := &rpc.Link{
		Host: interfaceOf(nic.HostLink, nic.HostMAC), Sandbox: interfaceOf(nic.IfName, nic.MAC), Mtu: uint32(nic.MTU),
	}
	for _, a := range nic.Addresses {
		address := &rpc.Address{Cidr: a.CIDR.String()}
		if a.Gateway.IsValid() {
			address.Gateway = a.Gateway.String()
		}
		link.Addresses = append(link.Addresses, address)
	}
	if nic.DefaultRoute {
		link.Routes = append(defaultRoutes(nic, netip.IPv4Unspecified()), defaultRoutes(nic, netip.IPv6Unspecified())...)
	}
	for _, r := range nic.Routes {
		route := &rpc.Route{Dst: r.Destination.String()}
		if r.Gateway.IsValid() {
			route.Gateway = r.Gateway.String()
		}
		link.Routes = append(link.Routes, route)
	}
	return link
}

// defaultRoutes is the route to anywhere of the family of nowhere, by the first gateway
// of that family; none without one.
func defaultRoutes(nic attachment.NIC, nowhere netip.Addr) []*rpc.Route {
	for _, a := range nic.Addresses {
		if a.Gateway.IsValid() && a.Gateway.Is4() == nowhere.Is4() {
			return []*rpc.Route{{Dst: netip.PrefixFrom(nowhere, 0).String(), Gateway: a.Gateway.String()}}
		}
	}
	return nil
}

// isRouted reports whether the node routes to a NIC, as it does to the address of a lease.
func isRouted(nic attachment.NIC) bool { return plug.Kind(nic.Plug.Type) == plug.RoutedVLAN }
