package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/lab/run/node"
)

// Parameters of hostAndPods.
const (
	hostTurns = 9
	hostTrips = 300 // round trips per turn
	hostPort  = 5002
	hostConns = 4
	hostTime  = time.Second // per transfer
	// hostRate is the bandwidth of a node, as that of a small EC2 instance. Without a limit the processors of the machine
	// are the fabric, and a pod's two further hops count as its bandwidth.
	hostRate  = 1e9 / 8 // bytes per second
	hostBurst = 1 << 20 // bytes
)

// ends are the ends of a way from one node to the other: between the nodes themselves, or between a pod of each.
type ends struct {
	name     string
	from, to pod
}

// hostAndPods measures what pods get of the node's bandwidth and latency: TCP throughput and round trips between pods of
// two nodes, in turn with the nodes themselves. Throughput is also measured without a limit of the bandwidth, which shows
// the processing time of a pod's packets.
func hostAndPods(ctx context.Context, b *bench) []Result {
	few, many := dial(b.bed.few), dial(b.bed.many)
	defer few.conn.Close()
	defer many.conn.Close()
	both := []ends{
		{"pod", b.bed.fill(ctx, few, 1)[0], b.bed.fill(ctx, many, 1)[0]},
		{"host", own(b.bed.few), own(b.bed.many)},
	}
	s := series{}
	measure := func(what string, one func(ends) float64) {
		for turn := range hostTurns + 1 {
			for i := range both { // in alternating order
				p := both[(i+turn)%len(both)]
				if got := one(p); turn > 0 { // the first turn is a warm-up
					s.add(p.name+" "+what, got)
				}
			}
		}
	}
	trips := map[string][]float64{}
	for _, network := range []string{"udp", "tcp"} {
		measure(network, func(p ends) float64 {
			times := roundTrips(ctx, network, p)
			trips[p.name+" "+network] = append(trips[p.name+" "+network], times...)
			return median(times)
		})
	}
	measure("unlimited", func(p ends) float64 { return stream(ctx, p) })
	for _, n := range []*node.Node{b.bed.few, b.bed.many} {
		must.OK(limit(n.Netns))
	}
	measure("limited", func(p ends) float64 { return stream(ctx, p) })
	for _, n := range []*node.Node{b.bed.few, b.bed.many} {
		must.OK(unlimit(n.Netns))
	}
	results := []Result{
		s.ratio("pod-throughput", "Mbit/s", "pod limited", "host limited"),
		s.ratio("pod-throughput-unlimited", "Mbit/s", "pod unlimited", "host unlimited"),
	}
	for _, network := range []string{"udp", "tcp"} {
		value, reference := percentile(trips["pod "+network], 99), percentile(trips["host "+network], 99)
		results = append(results, s.ratio("pod-latency-"+network, "us", "pod "+network, "host "+network),
			Result{Name: "pod-latency-" + network + "-p99", Value: value, Reference: reference, Ratio: value / reference, Unit: "us", Runs: len(trips["pod "+network])})
	}
	return results
}

// own returns the node itself as an end of a path.
func own(n *node.Node) pod {
	link := must.Get(defaultLink(n.Netns))
	var addr netip.Addr
	must.OK(ns.Do(n.Netns, func() error {
		list, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil || len(list) == 0 {
			return fmt.Errorf("find an address of %s: %w", n.Name, err)
		}
		addr = rtnl.AddrOf(list[0].IP)
		return nil
	}))
	return pod{n.Netns, addr}
}

// defaultLink returns the link with a namespace's default route.
func defaultLink(netns string) (link netlink.Link, err error) {
	err = ns.Do(netns, func() error {
		routes, err := netlink.RouteGet(net.IPv4(198, 51, 100, 1))
		if err != nil || len(routes) == 0 {
			return fmt.Errorf("find the default route of %s: %w", netns, err)
		}
		link, err = netlink.LinkByIndex(routes[0].LinkIndex)
		return err
	})
	return link, err
}

// limit limits what a node sends to the bandwidth of its instance, for both kinds of path.
func limit(netns string) error {
	return onLinks(netns, func(link netlink.Link) error {
		return netlink.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
			Rate:       hostRate, Buffer: netlink.Xmittime(hostRate, hostBurst), Limit: 4 * hostBurst,
		})
	})
}

func unlimit(netns string) error {
	return onLinks(netns, func(link netlink.Link) error {
		return netlink.QdiscDel(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}})
	})
}

// onLinks calls do for the links of a node's ENIs: all that are neither loopback nor a pod's.
func onLinks(netns string, do func(netlink.Link) error) error {
	return ns.Do(netns, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Attrs().Flags&net.FlagLoopback != 0 || l.Attrs().Flags&net.FlagUp == 0 || len(l.Attrs().Name) > 4 && l.Attrs().Name[:3] == "bth" {
				continue
			}
			if err := do(l); err != nil {
				return fmt.Errorf("limit %s: %w", l.Attrs().Name, err)
			}
		}
		return nil
	})
}

// stream saturates several TCP connections, and returns the total rate in Mbit/s.
func stream(ctx context.Context, p ends) float64 {
	to := netip.AddrPortFrom(p.to.addr, hostPort)
	l := must.Get(ns.Listen(p.to.netns, to))
	defer l.Close()
	var from, into []net.Conn
	for range hostConns {
		c := must.Get(ns.Dial(ctx, p.from.netns, "tcp", to, netip.Addr{}))
		defer c.Close()
		r := must.Get(l.Accept())
		defer r.Close()
		from, into = append(from, c), append(into, r)
	}
	var all atomic.Int64
	begin := time.Now()
	must.OK(objects.Each(ctx, 2*hostConns, 2*hostConns, func(_ context.Context, i int) error {
		if i < hostConns {
			return pour(from[i], begin.Add(hostTime))
		}
		n, err := drain(into[i-hostConns])
		all.Add(n)
		return err
	}))
	return float64(all.Load()) * 8 / 1e6 / time.Since(begin).Seconds()
}

// roundTrips returns the durations in µs of round trips of small messages, one after another.
func roundTrips(ctx context.Context, network string, p ends) (times []float64) {
	to := netip.AddrPortFrom(p.to.addr, hostPort)
	stop := func() error { return nil }
	if network == "udp" {
		in := must.Get(ns.ListenPacket(p.to.netns, to))
		stop = in.Close
		go func() {
			data := make([]byte, 64)
			for {
				n, back, err := in.ReadFromUDPAddrPort(data)
				if err != nil {
					return
				}
				_, _ = in.WriteToUDPAddrPort(data[:n], back)
			}
		}()
	} else {
		l := must.Get(ns.Listen(p.to.netns, to))
		stop = l.Close
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			data := make([]byte, 64)
			for {
				n, err := c.Read(data)
				if err != nil {
					return
				}
				_, _ = c.Write(data[:n])
			}
		}()
	}
	defer func() { _ = stop() }()
	out := must.Get(ns.Dial(ctx, p.from.netns, network, to, netip.Addr{}))
	defer out.Close()
	must.OK(out.SetDeadline(time.Now().Add(time.Minute)))
	data := make([]byte, 64)
	for range hostTrips {
		start := time.Now()
		must.Get(out.Write(data))
		must.Get(out.Read(data))
		times = append(times, float64(time.Since(start))/float64(time.Microsecond))
	}
	return times
}

// percentile returns a measured value that at least p percent do not exceed.
func percentile(xs []float64, p int) float64 {
	s := slices.SortedFunc(slices.Values(xs), cmp.Compare[float64])
	return s[min(len(s)*p/100, len(s)-1)]
}
