package cni

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthnet/berth/internal/rpc/wire"
)

// Limits of a reply. A pod has at most 32 NICs, and the status of a PodNIC 16 addresses and 64 routes
// (api/v1alpha1), plus default routes.
const (
	maxLinks     = 32
	maxAddresses = 16
	maxRoutes    = 64 + 2
)

// resultOf converts the daemon's reply to a CNI result. Only version 1.1.0 has the MTU and the scope
// of a route; older results omit both, since a route without gateway would mean the default gateway
// there. Of further interfaces a result has the default routes only: it cannot say through which
// interface a route leads.
func resultOf(reply wire.AddReply, netns string, conf addConf) (*current.Result, error) {
	newest, err := version.GreaterThanOrEqualTo(conf.CNIVersion, "1.1.0")
	if err != nil {
		return nil, types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI version", err.Error())
	}
	if err := checkSize(reply); err != nil {
		return nil, err
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, DNS: conf.DNS}
	pod := addInterfaces(result, reply.Host, reply.Sandbox, netns, mtuIf(newest, reply.MTU))
	gateways, err := addRoutes(result, reply.Routes, newest)
	if err != nil {
		return nil, err
	}
	if err := addAddresses(result, pod, reply.Addresses, gateways); err != nil {
		return nil, err
	}
	for _, link := range reply.Links {
		if err := addLink(result, link, netns, newest); err != nil {
			return nil, err
		}
	}
	return result, nil
}

func mtuIf(newest bool, mtu uint32) int {
	if newest {
		return int(mtu)
	}
	return 0
}

// checkSize rejects replies that no daemon sends.
func checkSize(reply wire.AddReply) error {
	within := len(reply.Links) <= maxLinks && len(reply.Addresses) <= maxAddresses && len(reply.Routes) <= maxRoutes
	for _, l := range reply.Links {
		within = within && len(l.Addresses) <= maxAddresses && len(l.Routes) <= maxRoutes
	}
	if !within {
		return types.NewError(types.ErrInternal, fmt.Sprintf(
			"berthd answered with more than %d further interfaces, or %d addresses or %d routes of one; are plugin and daemon of the same release?",
			maxLinks, maxAddresses, maxRoutes), "")
	}
	return nil
}

// addInterfaces adds the end of a link on the node, if it has one, and the end in the sandbox, whose
// index it returns.
func addInterfaces(result *current.Result, host, pod wire.Interface, netns string, mtu int) int {
	if host.Name != "" {
		result.Interfaces = append(result.Interfaces, &current.Interface{Name: host.Name, Mac: host.MAC, Mtu: mtu})
	}
	result.Interfaces = append(result.Interfaces, &current.Interface{Name: pod.Name, Mac: pod.MAC, Mtu: mtu, Sandbox: netns})
	return len(result.Interfaces) - 1
}

// addLink adds a further interface of the sandbox.
func addLink(result *current.Result, link wire.Link, netns string, newest bool) error {
	index := addInterfaces(result, link.Host, link.Sandbox, netns, mtuIf(newest, link.MTU))
	anywhere := slices.DeleteFunc(slices.Clone(link.Routes), func(r wire.Route) bool { return !strings.HasSuffix(r.Dst, "/0") })
	if _, err := addRoutes(result, anywhere, newest); err != nil {
		return err
	}
	for _, a := range link.Addresses {
		prefix, err := netip.ParsePrefix(a.CIDR)
		if err != nil {
			return badReply("address", a.CIDR, err)
		}
		ip := &current.IPConfig{Interface: current.Int(index), Address: ipNet(prefix)}
		if a.Gateway != "" {
			gateway, err := netip.ParseAddr(a.Gateway)
			if err != nil {
				return badReply("gateway", a.Gateway, err)
			}
			ip.Gateway = gateway.AsSlice()
		}
		result.IPs = append(result.IPs, ip)
	}
	return nil
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

func addAddresses(result *current.Result, index int, addresses []string, via gateways) error {
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a)
		if err != nil {
			return badReply("address", a, err)
		}
		ip := &current.IPConfig{Interface: current.Int(index), Address: ipNet(prefix)}
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
