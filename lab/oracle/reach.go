package oracle

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
)

// OutsideHosts returns the addresses of the host on the internet, or outside the site: IPv4 first, then IPv6 if the lab
// has it.
func OutsideHosts(l *lab.Lab) []netip.Addr {
	hosts := []netip.Addr{fabric.InternetHost, fabric.InternetHost6}
	if l.Site != nil {
		hosts = []netip.Addr{site.OutsideHost, site.OutsideHost6}
	}
	if !l.HasIPv6() {
		hosts = hosts[:1]
	}
	return hosts
}

// SeenOutside returns the source that the host outside sees for a pod's address: the pod's address if a route back to
// it exists, otherwise the node's address. In a VPC, primary IPv4 addresses and all IPv6 addresses are public.
func SeenOutside(l *lab.Lab, n *node.Node, own netip.Addr) netip.Addr {
	if l.Cloud == nil || own.Is6() {
		return own
	}
	return l.Snapshot().InstanceENIs(n.InstanceID)[0].Primary
}

// Reach sends requests by TCP and UDP from each pod, in each of its families, to the next pod of its node, a pod of the
// next node, its own node, and the host outside. The destination must see the pod's own address, or outside the
// address of SeenOutside. In the family of a node-local address, the pod sends requests to the next node and the host
// outside, which must see the address of the pod's node. Reach returns the number of replies, and an error for each
// request without the expected reply. It is for labs with routed first interfaces and the daemon's default settings.
func Reach(ctx context.Context, l *lab.Lab) (answers int, err error) {
	var errs []error
	nodes := l.Nodes()
	for i, n := range nodes {
		here, there := n.Pods(), nodes[(i+1)%len(nodes)].Pods()
		for k, p := range here {
			for _, own := range p.Addrs {
				to := map[netip.Addr]netip.Addr{} // expected sources by destination
				for _, pods := range [][]*node.Pod{here, there} {
					if len(pods) == 0 {
						continue
					}
					if a := inFamily(pods[(k+1)%len(pods)].Addrs, own); a.IsValid() && a != own {
						to[a] = own
					}
				}
				if a := inFamily(lab.OwnAddrs(l, n), own); a.IsValid() {
					to[a] = own
				}
				if a := inFamily(OutsideHosts(l), own); a.IsValid() {
					to[a] = SeenOutside(l, n, own)
				}
				n, err := seenBy(ctx, p, to)
				answers += n
				errs = append(errs, err)
			}
			n, err := seenBy(ctx, p, byNodeLocal(l, n, nodes[(i+1)%len(nodes)]))
			answers += n
			errs = append(errs, err)
		}
	}
	return answers, errors.Join(errs...)
}

// byNodeLocal returns the destinations for requests from a pod's node-local address, with the source that each must
// see.
func byNodeLocal(l *lab.Lab, n, next *node.Node) map[netip.Addr]netip.Addr {
	family, has := nodeLocalOn(l, n)
	if !has {
		return nil
	}
	like := netip.IPv4Unspecified()
	if family == ipfamily.IPv6 {
		like = netip.IPv6Unspecified()
	}
	own, to := inFamily(lab.OwnAddrs(l, n), like), map[netip.Addr]netip.Addr{}
	to[inFamily(OutsideHosts(l), like)] = own
	if a := inFamily(lab.OwnAddrs(l, next), like); n != next && a.IsValid() {
		to[a] = own
	}
	return to
}

// inFamily returns the first of addresses in the family of like, or the zero address.
func inFamily(addrs []netip.Addr, like netip.Addr) netip.Addr {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
	if i < 0 {
		return netip.Addr{}
	}
	return addrs[i]
}

// seenBy sends a request to each destination, and verifies the source that it sees.
func seenBy(ctx context.Context, p *node.Pod, to map[netip.Addr]netip.Addr) (answers int, err error) {
	const within = 20 * time.Second // longer than stalls of a busy machine
	var errs []error
	for a, as := range to {
		for _, network := range []string{"tcp", "udp"} {
			one, cancel := context.WithTimeout(ctx, within)
			r, err := echo.Ask(one, p.Inside(), network, netip.AddrPortFrom(a, echo.Port), netip.Addr{}, "hello")
			cancel()
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("%s/%s to %s by %s: %w", p.Node, p.Name, a, network, err))
			case r.You != as:
				errs = append(errs, fmt.Errorf("%s/%s to %s by %s: seen as %s, want %s", p.Node, p.Name, a, network, r.You, as))
			default:
				answers++
			}
		}
	}
	return answers, errors.Join(errs...)
}

// nodeLocal returns the family of pods' node-local addresses, if they have any.
func nodeLocal(o lab.Options) (f ipfamily.Family, has bool) {
	switch {
	case !o.Mode.HasEC2() || o.IPFamilies == ipfamily.Dual:
		return 0, false
	case o.IPFamilies.Has(ipfamily.IPv6):
		return ipfamily.IPv4, true
	default:
		return ipfamily.IPv6, o.IPv6Egress
	}
}

// nodeLocalOn is nodeLocal for the pods of a node: without an IPv4 address of the node, they have no IPv4 node-local
// address.
func nodeLocalOn(l *lab.Lab, n *node.Node) (f ipfamily.Family, has bool) {
	f, has = nodeLocal(l.Options)
	return f, has && (f != ipfamily.IPv4 || !lab.IPv6Only(l.Snapshot(), n.InstanceID))
}
