package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/internal/kernel/egressclient"
	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/kernel/ns"
)

// Parameters of egressThroughput.
const (
	throughputTurns = 7
	throughputTime  = time.Second // per transfer
	throughputConns = 4           // concurrent: a single connection leaves a random processor idle
	throughputPort  = 5001
	fouPort         = 5555
	egressMTU       = 1500

	throughputPatience = time.Minute // for a transfer, including data in flight
)

// Network namespaces of egressThroughput. The node routes between the other four. Each of these has one link
// to the node, with one address per family; the host outside has two per family.
const (
	throughputNode, throughputClient, throughputGateway, throughputRouter, throughputOutside = "bench-node", "bench-client", "bench-gateway", "bench-router", "bench-outside"
)

// way is the path of packets of one family from the client to the host outside and back.
type way struct {
	name             string
	tunnel, ordinary netip.Addr // the host outside through the Egress, and through the routing pod
}

var ways = []way{
	{"-ipv4", netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("203.0.113.10")},
	{"-ipv6", netip.MustParseAddr("2001:db8:9::9"), netip.MustParseAddr("2001:db8:9::a")},
}

// pair returns a host's IPv4 and IPv6 addresses.
func pair(v4, v6 string) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}
}

var throughputHosts = []struct {
	netns, link string
	addrs       []netip.Prefix
}{
	{throughputClient, "client", pair("10.1.0.2/24", "fd01::2/64")},
	{throughputGateway, "gateway", pair("10.1.1.2/24", "fd01:0:1::2/64")},
	{throughputRouter, "router", pair("10.1.2.2/24", "fd01:0:2::2/64")},
	{throughputOutside, "outside", pair("203.0.113.9/24", "2001:db8:9::9/64")},
}

// egressThroughput measures TCP between a client and a host outside through the tunnel and a gateway, as
// Berth configures them, in turn with an ordinary pod in the gateway's place that routes and masquerades:
// the same links and hops, without a tunnel. It measures both directions and both families. The figure with
// the budget is the mean rate of these four, each of which is noisy.
func egressThroughput(ctx context.Context, _ *bench) []Result {
	defer func() {
		var err error
		for _, name := range []string{throughputNode, throughputClient, throughputGateway, throughputRouter, throughputOutside} {
			err = errors.Join(err, ns.Remove(name))
		}
		must.OK(err)
	}()
	must.OK(raiseWays(ctx))
	s := series{}
	for turn := range throughputTurns + 1 {
		var mean [2]float64
		for _, w := range ways {
			for _, down := range []bool{false, true} {
				for i, to := range []netip.Addr{w.tunnel, w.ordinary} {
					got := must.Get(transfer(ctx, netip.AddrPortFrom(to, throughputPort), down))
					mean[i] += got / float64(2*len(ways))
					if turn > 0 { // the first turn is a warm-up
						s.add(transferName(w, down)+againstRoute[i], got)
					}
				}
			}
		}
		for i, of := range againstRoute {
			if turn > 0 {
				s.add(throughput+of, mean[i])
			}
		}
	}
	names := []string{throughput}
	for _, w := range ways {
		names = append(names, transferName(w, false), transferName(w, true))
	}
	var results []Result
	for _, of := range names {
		results = append(results, s.ratio(of, "Mbit/s", of, of+againstRoute[1]))
	}
	return results
}

const throughput = "egress-throughput"

// againstRoute are the suffixes of the series through the tunnel and through the routing pod.
var againstRoute = [2]string{"", " reference"}

func transferName(w way, down bool) string {
	direction := "-up"
	if down {
		direction = "-down"
	}
	return throughput + direction + w.name
}

// raiseWays creates the namespaces and sets up the client, the gateway and the routing pod.
func raiseWays(ctx context.Context) (err error) {
	defer must.Catch(&err)
	must.OK(ns.Create(throughputNode))
	node := ns.Path(throughputNode)
	forward := func() error { return ns.SetSysctls(ns.Forwarding...) }
	must.OK(ns.Do(node, forward))
	for _, h := range throughputHosts {
		must.OK(ns.Create(h.netns))
		via := []netip.Addr{h.addrs[0].Masked().Addr().Next(), h.addrs[1].Masked().Addr().Next()}
		must.OK(ns.Netlink(node, func(nl *netlink.Handle) error {
			return ns.AddHost(nl, h.link, ns.Path(h.netns), h.addrs, via, egressMTU)
		}))
	}
	must.OK(ns.Do(ns.Path(throughputRouter), func() error { return errors.Join(forward(), masquerade("eth0")) }))
	// As berthd does for a gateway's pod.
	must.OK(ns.Do(ns.Path(throughputGateway), func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "1"})
	}))
	must.OK(errors.Join(ns.Netlink(node, byRouter), ns.Netlink(ns.Path(throughputOutside), secondAddresses)))
	return setUpEgress(ctx)
}

// byRouter routes packets from the client to the second addresses of the host outside through the routing
// pod.
func byRouter(nl *netlink.Handle) error {
	link, err := nl.LinkByName("router")
	if err != nil {
		return err
	}
	const table = 100
	for i, w := range ways {
		family := []int{unix.AF_INET, unix.AF_INET6}[i]
		to := ns.IPNet(netip.PrefixFrom(w.ordinary, w.ordinary.BitLen()))
		via := throughputHosts[2].addrs[i].Addr()
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Table, rule.IifName, rule.Dst = family, 1000, table, "client", to
		if err := errors.Join(nl.RouteAdd(&netlink.Route{Family: family, LinkIndex: link.Attrs().Index, Dst: to, Gw: via.AsSlice(), Table: table}), nl.RuleAdd(rule)); err != nil {
			return fmt.Errorf("route to %s: %w", w.ordinary, err)
		}
	}
	return nil
}

func secondAddresses(nl *netlink.Handle) error {
	link, err := nl.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, w := range ways {
		if err := ns.AddAddr(nl, link, netip.PrefixFrom(w.ordinary, w.ordinary.BitLen())); err != nil {
			return err
		}
	}
	return nil
}

// masquerade masquerades packets that leave by a link, in the calling thread's network namespace.
func masquerade(link string) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "bench"})
	chain := c.AddChain(&nftables.Chain{
		Table: t, Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	name := append([]byte(link), make([]byte, unix.IFNAMSIZ-len(link))...)
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name}, &expr.Masq{},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	return nil
}

// setUpEgress sets up client and gateway as berthd and berth-egress do.
func setUpEgress(ctx context.Context) (err error) {
	own := func(i int) []netip.Addr {
		a := throughputHosts[i].addrs
		return []netip.Addr{a[0].Addr(), a[1].Addr()}
	}
	var destinations []netip.Prefix
	for _, w := range ways {
		destinations = append(destinations, netip.PrefixFrom(w.tunnel, w.tunnel.BitLen()))
	}
	k, err := egressgateway.Open(ns.Path(throughputGateway))
	if err != nil {
		return err
	}
	defer k.Close()
	err = k.Apply(ctx, egressgateway.Setup{
		Link: "eth0", Addrs: own(1), Port: fouPort, Destinations: destinations,
		Clients: []egressgateway.Client{{UID: "bench", Addrs: own(0)}},
	})
	if err != nil {
		return err
	}
	return egressclient.Apply(ctx, ns.Path(throughputClient), egressclient.Setup{
		Link: "eth0", MTU: egressMTU, Addrs: own(0), Port: fouPort,
		Egresses: []egressclient.Egress{{
			Name: "bench/bench", Destinations: destinations,
			Gateways: []egressclient.Gateway{{ID: 1, Addrs: own(1), Chosen: true}},
		}},
	})
}

// transfer saturates several connections from the client to the host outside or, if down is set, in the
// other direction. It returns the total rate in Mbit/s, from the first byte sent to the last byte received.
func transfer(ctx context.Context, to netip.AddrPort, down bool) (float64, error) {
	l, err := ns.Listen(ns.Path(throughputOutside), to)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(ctx, throughputPatience)
	defer cancel()
	deadline, _ := ctx.Deadline()
	var from, into []net.Conn
	for range throughputConns {
		c, s, err := connect(ctx, l, to)
		if err != nil {
			return 0, err
		}
		defer c.Close()
		defer s.Close()
		if err := errors.Join(c.SetDeadline(deadline), s.SetDeadline(deadline)); err != nil {
			return 0, err
		}
		if down {
			c, s = s, c
		}
		from, into = append(from, c), append(into, s)
	}
	var all atomic.Int64
	begin := time.Now()
	err = objects.Each(ctx, 2*throughputConns, 2*throughputConns, func(_ context.Context, i int) error {
		if i < throughputConns {
			return pour(from[i], begin.Add(throughputTime))
		}
		n, err := drain(into[i-throughputConns])
		all.Add(n)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("transfer to %s: %w", to, err)
	}
	return float64(all.Load()) * 8 / 1e6 / time.Since(begin).Seconds(), nil
}

// connect connects the client to a listener outside, and verifies the path of the connection.
func connect(ctx context.Context, l net.Listener, to netip.AddrPort) (c, s net.Conn, err error) {
	if c, err = ns.Dial(ctx, ns.Path(throughputClient), "tcp", to, netip.Addr{}); err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	if s, err = l.Accept(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("accept at %s: %w", to, err), c.Close())
	}
	seen, err := netip.ParseAddrPort(s.RemoteAddr().String())
	if by := throughputBy(to.Addr()); err == nil && !by.Contains(seen.Addr()) {
		err = fmt.Errorf("connection to %s comes from %s, expected a source in %s", to, seen, by)
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Close(), s.Close())
	}
	return c, s, nil
}

// throughputBy returns the expected source network of connections to an address of the host outside.
func throughputBy(to netip.Addr) netip.Prefix {
	for i, w := range ways {
		switch to {
		case w.tunnel:
			return throughputHosts[1].addrs[i]
		case w.ordinary:
			return throughputHosts[2].addrs[i]
		}
	}
	return netip.Prefix{}
}

// pour writes until the given time, and closes the connection.
func pour(c net.Conn, until time.Time) error {
	data := make([]byte, 128<<10)
	for time.Now().Before(until) {
		if _, err := c.Write(data); err != nil {
			return err
		}
	}
	return c.Close()
}

// drain reads until EOF, and returns the number of bytes.
func drain(c net.Conn) (n int64, err error) {
	data := make([]byte, 256<<10)
	for {
		m, err := c.Read(data)
		n += int64(m)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}
