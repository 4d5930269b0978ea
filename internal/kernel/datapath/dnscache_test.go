package datapath

import (
	"context"
	"net/netip"
	"testing"

	"github.com/berthnet/berth/lab/network/dnscache"
	"github.com/berthnet/berth/lab/network/echo"
)

// asksCache wants pods, and the node, to get answers at all addresses of a NodeLocal DNSCache, whose packets are not tracked.
func (b *bed) asksCache(pods ...*pod) {
	b.t.Helper()
	server, err := echo.Serve(b.host.path())
	b.ok(err)
	defer func() { b.ok(server.Close()) }()
	for _, backend := range dnscache.Backends {
		cache, err := dnscache.Install(b.host.path(), backend, echo.Port)
		b.ok(err)
		for _, a := range dnscache.Addrs {
			seen := map[*space]netip.Addr{b.host: a}
			for _, p := range pods {
				seen[p.space] = netip.MustParseAddr(p.want.addrLike(a.String()))
			}
			for s, as := range seen {
				for _, network := range []string{"udp", "tcp"} {
					patience, cancel := context.WithTimeout(ctx, dialTimeout)
					r, err := echo.Ask(patience, s.path(), network, netip.AddrPortFrom(a, echo.Port), netip.Addr{}, "name")
					cancel()
					if err != nil || r.You != as || r.To != a {
						b.t.Fatalf("iptables-%s: %s asks %s by %s: %v, %v; want an answer to %s", backend, s.name, a, network, r, err, as)
					}
				}
			}
		}
		b.ok(cache.Tracked())
		b.ok(cache.Remove())
	}
}

func TestNodeLocalDNSCache(t *testing.T) {
	own := [][]string{{podA, podA6}, {podB, podB6}} // of the primary ENI, and of the secondary
	for name, c := range map[string]struct {
		edit func(*vpc)
		pods [][]string
	}{
		"SNAT":             {func(*vpc) {}, own},
		"SNAT by IPv6 too": {func(v *vpc) { v.uplinks.PrimaryIPv6 = netip.MustParseAddr(nodeAddr6) }, own},
		"external SNAT":    {func(v *vpc) { v.uplinks.ExternalSNAT = true }, own},
		"other mark bits":  {func(v *vpc) { v.uplinks.MarkShift = 16 }, own},
		"node-local addresses": {func(v *vpc) {
			withNodeLocal(v)
			v.uplinks.PrimaryIPv6 = netip.MustParseAddr(nodeAddr6)
		}, [][]string{{podB, local6}, {local4, podB6}}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVPC(t, c.edit)
			var pods []*pod
			for _, addrs := range c.pods {
				pods = append(pods, v.pod(addrs...))
			}
			v.asksCache(pods...)
		})
	}
	t.Run("address pool", func(t *testing.T) {
		r := newRack(t)
		r.set(block("a", block4, block6))
		r.asksCache(r.pod("10.2.0.33", "fd02::21"))
	})
}
