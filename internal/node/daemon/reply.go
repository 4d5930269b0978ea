package daemon

import (
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/rpc"
)

// The gateways inside pods (for IPv4 as in the proposal for the Amazon VPC CNI). Package datapath sets them up.
const (
	podGateway4 = "169.254.1.1"
	podGateway6 = "fe80::1"
)

// replyOf returns the reply to an ADD: the attachment's own interface, from the lease or from the NIC with
// its name, followed by the other NICs. Interfaces of other plugins are not included.
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

// routedAddrs returns the addresses of the attachment's own interface to which the node has routes. There are
// none for a NIC to which the VPC routes.
func routedAddrs(rec attachment.Record) []netip.Addr {
	if first := rec.First(); first != nil && isRouted(*first) {
		return rec.OwnAddrs()
	}
	return rec.Lease.Addrs()
}

// texts formats addresses as CIDRs of single hosts.
func texts(addrs []netip.Addr) (cidrs []string) {
	for _, a := range addrs {
		cidrs = append(cidrs, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return cidrs
}

// leadByNIC reports whether the default route of a family leads through a NIC to which the VPC routes.
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

// defaultRoutes returns the default route of the family of nowhere through the first gateway of that
// family, or none.
func defaultRoutes(nic attachment.NIC, nowhere netip.Addr) []*rpc.Route {
	for _, a := range nic.Addresses {
		if a.Gateway.IsValid() && a.Gateway.Is4() == nowhere.Is4() {
			return []*rpc.Route{{Dst: netip.PrefixFrom(nowhere, 0).String(), Gateway: a.Gateway.String()}}
		}
	}
	return nil
}

// isRouted reports whether the node has a route to a NIC, as to the address of a lease.
func isRouted(nic attachment.NIC) bool { return plug.Kind(nic.Plug.Type) == plug.RoutedVLAN }
