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

// OutsideHosts are the addresses of the host on the internet, or outside the site: IPv4
// first, and IPv6 where the lab has it.
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

// SeenOutside is the source that the host outside sees for a pod's address: that address where
// there is a route back to it, else the node's own. In a VPC only primary IPv4 addresses are
// public, and all IPv6 addresses.
func SeenOutside(l *lab.Lab, n *node.Node, own netip.Addr) netip.Addr {
	if l.Cloud == nil || own.Is6() {
		return own
	}
	return l.Snapshot().InstanceENIs(n.InstanceID)[0].Primary
}

// Reach asks by TCP and UDP from each pod, in each family that it has: the next pod of
// its node, one of the next node, its own node, and the host outside; and wants the pod's own
// address to be seen, or outside the address of SeenOutside. In the family of which it has a
// node-local address it asks the next node and the host outside, and wants its own node's to
// be seen. It returns how many questions were
// answered. The errors are those that were not, or not so. It is for labs with pods whose
// first interface is routed, with the daemon's default settings.
func Reach(ctx context.Context, l *lab.Lab) (answers int, err error) {
	var errs []error
	nodes := l.Nodes()
	for i, n := range nodes {
		here, there := n.Pods(), nodes[(i+1)%len(nodes)].Pods()
		for k, p := range here {
			for _, own := range p.Addrs {
				to := map[netip.Addr]netip.Addr{} // the pod's destination: the source that it must see
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

// byNodeLocal returns the destinations that a pod of a node asks from its node-local address, with
// the source that each must see.
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

// inFamily is the first of addresses that is of the family of like; zero when none is.
func inFamily(addrs []netip.Addr, like netip.Addr) netip.Addr {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
	if i < 0 {
		return netip.Addr{}
	}
	return addrs[i]
}

// seenBy asks each of to, and wants to be seen as it says.
func seenBy(ctx context.Context, p *node.Pod, to map[netip.Addr]netip.Addr) (answers int, err error) {
	const within = 20 * time.Second // longer than a busy machine stands still
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

// nodeLocal is the family of which pods have node-local addresses, if they have any.
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

// nodeLocalOn is nodeLocal for the pods of a node: they have none of IPv4 where it has no such
// address itself.
func nodeLocalOn(l *lab.Lab, n *node.Node) (f ipfamily.Family, has bool) {
	f, has = nodeLocal(l.Options)
	return f, has && (f != ipfamily.IPv4 || !lab.IPv6Only(l.Snapshot(), n.InstanceID))
}
