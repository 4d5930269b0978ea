package cni

import (
	"net"
	"net/netip"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthnet/berth/internal/rpc/wire"
)

// podInterface is the index of the pod's interface in a result; the host's is 0.
const podInterface = 1

// resultOf is the daemon's answer as a CNI result. Of what only version 1.1.0
// can say, the MTU and the scope of a route, older results say nothing: a
// route without gateway would mean one by the default gateway there.
func resultOf(reply wire.AddReply, netns string, conf addConf) (*current.Result, error) {
	newest, err := version.GreaterThanOrEqualTo(conf.CNIVersion, "1.1.0")
	if err != nil {
		return nil, types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI version", err.Error())
	}
	host, pod := reply.Host, reply.Sandbox
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: host.Name, Mac: host.MAC},
			{Name: pod.Name, Mac: pod.MAC, Sandbox: netns},
		},
		DNS: conf.DNS,
	}
	if newest {
		for _, i := range result.Interfaces {
			i.Mtu = int(reply.MTU)
		}
	}
	gateways, err := addRoutes(result, reply.Routes, newest)
	if err != nil {
		return nil, err
	}
	return result, addAddresses(result, reply.Addresses, gateways)
}

// gateways of the default routes, by whether they are IPv4.
type gateways map[bool]netip.Addr

func addRoutes(result *current.Result, routes []wire.Route, withScope bool) (gateways, error) {
	defaults := gateways{}
	for _, r := range routes {
		dst, err := netip.ParsePrefix(r.Dst)
		if err != nil {
			return nil, badReply("route", r.Dst, err)
		}
		route := &types.Route{Dst: ipNet(dst)}
		switch {
		case r.Gateway != "":
			gw, err := netip.ParseAddr(r.Gateway)
			if err != nil {
				return nil, badReply("gateway", r.Gateway, err)
			}
			route.GW = gw.AsSlice()
			if dst.Bits() == 0 {
				defaults[dst.Addr().Is4()] = gw
			}
		case withScope:
			scope := syscall.RT_SCOPE_LINK
			route.Scope = &scope
		default:
			continue
		}
		result.Routes = append(result.Routes, route)
	}
	return defaults, nil
}

func addAddresses(result *current.Result, addresses []string, via gateways) error {
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a)
		if err != nil {
			return badReply("address", a, err)
		}
		ip := &current.IPConfig{Interface: current.Int(podInterface), Address: ipNet(prefix)}
		if gw, ok := via[prefix.Addr().Is4()]; ok {
			ip.Gateway = gw.AsSlice()
		}
		result.IPs = append(result.IPs, ip)
	}
	return nil
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func badReply(what, value string, err error) *types.Error {
	return types.NewError(types.ErrInternal, "berthd answered with the "+what+" "+value+"; are plugin and daemon of the same release?", err.Error())
}
