package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/datapath/bare"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/lab/run/node"
)

// client calls one node's daemon without the plugin in between.
type client struct {
	conn *grpc.ClientConn
	rpc  rpc.NodeClient
	pod  *rpc.Pod // that its ADDs are of; nil: of none that has a name
}

func dial(n *node.Node) (*client, error) {
	conn, err := grpc.NewClient("unix://"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("reach the daemon of %s: %w", n.Name, err)
	}
	return &client{conn: conn, rpc: rpc.NewNodeClient(conn)}, nil
}

func key(rt *libcni.RuntimeConf) *rpc.Attachment {
	return &rpc.Attachment{Network: "bench", ContainerId: rt.ContainerID, IfName: rt.IfName}
}

func (c *client) add(ctx context.Context, rt *libcni.RuntimeConf) (time.Duration, error) {
	start := time.Now()
	_, err := c.rpc.Add(ctx, &rpc.AddRequest{Attachment: key(rt), Netns: rt.NetNS, Pod: c.pod})
	return time.Since(start), err
}

func (c *client) del(ctx context.Context, rt *libcni.RuntimeConf) error {
	_, err := c.rpc.Del(ctx, &rpc.DelRequest{Attachment: key(rt), Netns: rt.NetNS})
	return err
}

// addOnce measures one ADD in a daemon, in a new sandbox, and takes it back.
func (b *testbed) addOnce(ctx context.Context, c *client) (time.Duration, error) {
	rt, err := b.sandboxes.sandbox()
	if err != nil {
		return 0, err
	}
	took, err := c.add(ctx, rt)
	if err != nil {
		return 0, err
	}
	return took, c.del(ctx, rt)
}

// daemonAdd measures a warm ADD in the daemon, by the daemon's own clock (its
// histogram), against the netlink calls that it makes, replayed bare in the
// same namespace.
func daemonAdd(ctx context.Context, b *bench) ([]Result, error) {
	return b.bed.daemonAdd(ctx, "daemon-add")
}

func (b *testbed) daemonAdd(ctx context.Context, name string) ([]Result, error) {
	c, err := dial(b.few)
	if err != nil {
		return nil, err
	}
	defer c.conn.Close()
	if b.podName != "" {
		c.pod = &rpc.Pod{Namespace: podNamespace, Name: b.podName}
	}
	host, err := nodeNetlink(b.few)
	if err != nil {
		return nil, err
	}
	defer host.Close()

	all, err := rounds(b.options.rounds, func(i int, note note) error {
		before, err := addSeconds(ctx, b.few)
		if err != nil {
			return err
		}
		if _, err := b.addOnce(ctx, c); err != nil {
			return err
		}
		after, err := addSeconds(ctx, b.few)
		if err != nil {
			return err
		}
		least, err := b.bareOnce(host, i)
		note("daemon", 1000*(after-before))
		note("floor", millis(least))
		return err
	})
	if err != nil {
		return nil, err
	}
	return []Result{ratio(name, "ms", all["daemon"], all["floor"])}, nil
}

// addSeconds is the time that all ADDs of a daemon took so far.
func addSeconds(ctx context.Context, n *node.Node) (float64, error) {
	text, err := n.Get(ctx, node.MetricsURL)
	if err != nil {
		return 0, fmt.Errorf("read the metrics of %s: %w", n.Name, err)
	}
	const name = "berth_add_duration_seconds_sum "
	for line := range strings.SplitSeq(text, "\n") {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseFloat(rest, 64)
		}
	}
	return 0, fmt.Errorf("the metrics of %s have no %s", n.Name, name)
}

// nodeNetlink opens netlink in a node's namespace.
func nodeNetlink(n *node.Node) (host *netlink.Handle, err error) {
	err = ns.Do(n.Netns, func() error {
		host, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", n.Name, err)
	}
	return host, nil
}

// bareOnce makes one pod link by its bare netlink calls.
func (b *testbed) bareOnce(host *netlink.Handle, i int) (time.Duration, error) {
	rt, err := b.sandboxes.sandbox()
	if err != nil {
		return 0, err
	}
	link := bare.Link{
		Netns: rt.NetNS, IfName: rt.IfName, HostIf: fmt.Sprintf("bare%d", i),
		HostMAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}, PodMAC: net.HardwareAddr{2, 0, 0, 1, byte(i >> 8), byte(i)},
		MTU: 9001, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 249, byte(i >> 8), byte(i)})},
		Table: 4711, // nobody looks it up
	}
	start := time.Now()
	if err := bare.Add(host, link); err != nil {
		return 0, fmt.Errorf("bare netlink calls: %w", err)
	}
	took := time.Since(start)
	made, err := host.LinkByName(link.HostIf)
	if err != nil {
		return 0, err
	}
	return took, host.LinkDel(made)
}

// families measures AddPod of the data path with both families, and with IPv6 alone,
// against IPv4.
func families(ctx context.Context, b *bench) ([]Result, error) {
	n, err := datapath.Open(b.bed.idle.Netns)
	if err != nil {
		return nil, err
	}
	defer func() { _ = n.Close() }()
	primary, err := linkMAC(b.bed.idle.Netns)
	if err != nil {
		return nil, err
	}
	if err := n.Setup(ctx, datapath.Config{Uplinks: datapath.VPC{
		PrimaryMAC: primary, ExternalSNAT: true,
		LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("2001:db8::/56")},
	}}); err != nil {
		return nil, err
	}
	all, err := rounds(b.options.rounds, func(i int, note note) error {
		for j, set := range []ipfamily.Set{ipfamily.Dual, ipfamily.OnlyIPv4, ipfamily.OnlyIPv6} {
			took, err := b.bed.linkOnce(ctx, n, 3*i+j, set)
			if err != nil {
				return err
			}
			note(string(set), millis(took))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	one := all[string(ipfamily.OnlyIPv4)]
	return []Result{
		ratio("dual-stack-add", "ms", all[string(ipfamily.Dual)], one),
		ratio("ipv6-add", "ms", all[string(ipfamily.OnlyIPv6)], one),
	}, nil
}

// linkOnce measures one AddPod for a pod with addresses of these families.
func (b *testbed) linkOnce(ctx context.Context, n *datapath.Node, i int, set ipfamily.Set) (time.Duration, error) {
	rt, err := b.sandboxes.sandbox()
	if err != nil {
		return 0, err
	}
	pod := datapath.Pod{
		Netns: rt.NetNS, IfName: rt.IfName, HostIfName: datapath.HostLinkName("bench", rt.ContainerID, rt.IfName),
	}
	if set.Has(ipfamily.IPv4) {
		pod.IPv4 = netip.AddrFrom4([4]byte{10, 0, 200 + byte(i>>8), byte(i)})
	}
	if set.Has(ipfamily.IPv6) {
		pod.IPv6 = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte(i >> 8), 15: byte(i)})
	}
	start := time.Now()
	if _, err := n.AddPod(ctx, pod); err != nil {
		return 0, err
	}
	took := time.Since(start)
	if err := n.DetachPod(ctx, pod.HostIfName, pod.Addrs()); err != nil {
		return 0, err
	}
	return took, n.ReapLinks(ctx, []string{pod.HostIfName})
}

// linkMAC is the address of the link that holds the default route of a namespace.
func linkMAC(netns string) (mac net.HardwareAddr, err error) {
	err = ns.Do(netns, func() error {
		routes, err := netlink.RouteGet(net.IPv4(198, 51, 100, 1))
		if err != nil || len(routes) == 0 {
			return fmt.Errorf("find the default route of %s: %w", netns, err)
		}
		link, err := netlink.LinkByIndex(routes[0].LinkIndex)
		if err != nil {
			return err
		}
		mac = link.Attrs().HardwareAddr
		return nil
	})
	return mac, err
}
