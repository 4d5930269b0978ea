package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/net/ipv4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/bench/usage"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/datapath/bare"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/lab/run/node"
)

const mebi = 1 << 20

// sizes measures the size of the plugin and the memory of an idle daemon.
func sizes(_ context.Context, b *bench) []Result {
	program := must.Get(os.Stat(filepath.Join(b.options.binDir, "berth")))
	return []Result{single("plugin-size", "MiB", float64(program.Size())/mebi, 0), single("daemon-idle", "MiB", memoryOf(b.bed.idle), 0)}
}

// memoryOf returns a daemon's private memory in MiB.
func memoryOf(n *node.Node) float64 { return float64(must.Get(usage.Memory(n.PID()))) / mebi }

// execs measures ADD and DEL from exec to result, in turn with the reference and with the minimum of an
// ADD.
func execs(ctx context.Context, b *bench) []Result {
	b.bed.installNull()
	host := b.bed.nodeNetlink()
	defer host.Close()
	s := b.bed.execs(ctx, b.options.rounds, func(i int, note note) {
		// The null plugin runs first, since the deletion of a link slows down subsequent calls.
		null := b.bed.nullOnce(ctx)["add"]
		note("null", null)
		note("floor", null+b.bed.bareOnce(host, i))
	})
	return append(execResults(s, ""), s.ratio("exec-add-floor", "ms", "add", "floor"), measured("exec-null", "ms", s["null"]...))
}

// nullOnce measures ADD and DEL of the null plugin.
func (b *testbed) nullOnce(ctx context.Context) map[string]float64 {
	took := map[string]float64{}
	b.null.addAndDel(ctx, b.null.sandbox(), "", func(of string, ms float64) { took[of] = ms })
	return took
}

// execs measures Berth and the reference in turn, and calls between after Berth.
func (b *testbed) execs(ctx context.Context, n int, between func(i int, note note)) series {
	return rounds(n, func(i int, note note) {
		b.berth.addAndDel(ctx, b.berth.sandbox(), "", note)
		between(i, note)
		b.reference.addAndDel(ctx, b.reference.sandbox(), "reference ", note)
	})
}

func execResults(s series, prefix string) []Result {
	return []Result{s.ratio(prefix+"exec-add", "ms", "add", "reference add"), s.ratio(prefix+"exec-del", "ms", "del", "reference del")}
}

// parallel measures the ADDs per second of 8 workers, in turn with one worker, and so the floor: the null plugin followed
// by the netlink calls of an ADD alone, on a socket of each worker's own and in a namespace that no daemon watches. The
// floor shows how much of the processors concurrent ADDs can use: the kernel creates one link at a time (RTNL), and a
// single ADD keeps more than one processor busy, as processes start on another one.
func parallel(ctx context.Context, b *bench) []Result {
	const batch = 32
	b.bed.installNull()
	rates, berth := series{}, b.bed.berth
	rate := func(of string, workers int, do func(ctx context.Context, i int)) {
		start := time.Now()
		eachOf(ctx, batch, workers, do)
		rates.add(of+strconv.Itoa(workers), batch/time.Since(start).Seconds())
	}
	for range max(3, b.options.rounds/4) {
		for _, workers := range []int{8, 1} {
			all := berth.sandboxes(batch)
			rate("", workers, func(ctx context.Context, i int) { berth.add(ctx, all[i]) })
			eachOf(ctx, batch, 8, func(ctx context.Context, i int) { berth.del(ctx, all[i]) })

			null, bares := b.bed.null.sandboxes(batch), b.bed.sandboxes.sandboxes(batch)
			rate("floor ", workers, func(ctx context.Context, i int) {
				host := netlinkIn(ns.Path(b.bed.refNetns))
				defer host.Close()
				b.bed.null.add(ctx, null[i])
				must.OK(bare.Add(host, bareLink(bares[i], i)))
			})
			host := netlinkIn(ns.Path(b.bed.refNetns))
			for i := range batch {
				removeBare(host, i)
			}
			host.Close()
		}
	}
	return []Result{rates.ratio("parallel-add", "ADD/s", "8", "1"), rates.ratio("parallel-floor", "ADD/s", "floor 8", "floor 1")}
}

// eachOf calls do for 0 to n-1 with the given number of workers.
func eachOf(ctx context.Context, n, workers int, do func(ctx context.Context, i int)) {
	must.OK(objects.Each(ctx, n, workers, func(ctx context.Context, i int) error {
		do(ctx, i)
		return nil
	}))
}

// client calls one node's daemon directly, without the plugin.
type client struct {
	conn *grpc.ClientConn
	rpc  rpc.NodeClient
	pod  *rpc.Pod // pod of the ADDs; nil: no named pod
}

func dial(n *node.Node) *client {
	conn := must.Get(grpc.NewClient("unix://"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials())))
	return &client{conn: conn, rpc: rpc.NewNodeClient(conn)}
}

func key(rt *libcni.RuntimeConf) *rpc.Attachment {
	return &rpc.Attachment{Network: "bench", ContainerId: rt.ContainerID, IfName: rt.IfName}
}

// addOnce measures one ADD in a daemon, in a new sandbox, followed by a DEL.
func (b *testbed) addOnce(ctx context.Context, c *client) float64 {
	rt := b.sandboxes.sandbox()
	start := time.Now()
	must.Get(c.rpc.Add(ctx, &rpc.AddRequest{Attachment: key(rt), Netns: rt.NetNS, Pod: c.pod}))
	took := time.Since(start)
	must.Get(c.rpc.Del(ctx, &rpc.DelRequest{Attachment: key(rt), Netns: rt.NetNS}))
	return millis(took)
}

func daemonAdds(ctx context.Context, b *bench) []Result { return b.bed.daemonAdds(ctx, "daemon-add") }

// daemonAdds measures a warm ADD in the daemon, by the daemon's own histogram, against the same netlink
// calls, replayed in the same namespace.
func (b *testbed) daemonAdds(ctx context.Context, name string) []Result {
	c := dial(b.few)
	defer c.conn.Close()
	if b.podName != "" {
		c.pod = &rpc.Pod{Namespace: podNamespace, Name: b.podName}
	}
	host := b.nodeNetlink()
	defer host.Close()
	s := rounds(b.options.rounds, func(i int, note note) {
		before := addSeconds(ctx, b.few)
		b.addOnce(ctx, c)
		note("daemon", 1000*(addSeconds(ctx, b.few)-before))
		note("floor", b.bareOnce(host, i))
	})
	return []Result{s.ratio(name, "ms", "daemon", "floor")}
}

// addSeconds returns the total time of a daemon's ADDs so far.
func addSeconds(ctx context.Context, n *node.Node) float64 {
	const name = "berth_add_duration_seconds_sum "
	for line := range strings.SplitSeq(must.Get(n.Get(ctx, node.MetricsURL)), "\n") {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return must.Get(strconv.ParseFloat(rest, 64))
		}
	}
	must.OK(fmt.Errorf("the metrics of %s have no %s", n.Name, name))
	return 0
}

// families measures AddPod of the data path for dual-stack and IPv6-only pods, against IPv4-only pods.
func families(ctx context.Context, b *bench) []Result {
	n := must.Get(datapath.Open(b.bed.idle.Netns))
	defer func() { _ = n.Close() }()
	must.OK(n.Setup(ctx, datapath.Config{Uplinks: datapath.VPC{
		PrimaryMAC: must.Get(defaultMAC(b.bed.idle.Netns)), ExternalSNAT: true,
		LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("2001:db8::/56")},
	}}))
	s := rounds(b.options.rounds, func(i int, note note) {
		for j, set := range []ipfamily.Set{ipfamily.Dual, ipfamily.OnlyIPv4, ipfamily.OnlyIPv6} {
			note(string(set), b.bed.linkOnce(ctx, n, 3*i+j, set))
		}
	})
	return []Result{
		s.ratio("dual-stack-add", "ms", string(ipfamily.Dual), string(ipfamily.OnlyIPv4)),
		s.ratio("ipv6-add", "ms", string(ipfamily.OnlyIPv6), string(ipfamily.OnlyIPv4)),
	}
}

// linkOnce measures one AddPod for a pod with addresses of the given families.
func (b *testbed) linkOnce(ctx context.Context, n *datapath.Node, i int, set ipfamily.Set) float64 {
	rt := b.sandboxes.sandbox()
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
	must.Get(n.AddPod(ctx, pod))
	took := time.Since(start)
	must.OK(n.DetachPod(ctx, pod.HostIfName, pod.Addrs()))
	must.OK(n.ReapLinks(ctx, []string{pod.HostIfName}))
	return millis(took)
}

// defaultMAC returns the MAC address of the link with a namespace's default route.
func defaultMAC(netns string) (net.HardwareAddr, error) {
	link, err := defaultLink(netns)
	if err != nil {
		return nil, err
	}
	return link.Attrs().HardwareAddr, nil
}

// manyPods compares a node with 10 pods with one with 250, then 500.
func manyPods(ctx context.Context, b *bench) []Result {
	few, many := dial(b.bed.few), dial(b.bed.many)
	defer few.conn.Close()
	defer many.conn.Close()

	fewPods, pods := b.bed.fill(ctx, few, 10), b.bed.fill(ctx, many, 250)
	results := []Result{single("daemon-250-pods", "MiB", memoryOf(b.bed.many), 0)}
	packets := series{}
	for range 7 {
		packets.add("many", forwarded(pods[0], pods[len(pods)-1], time.Second))
		packets.add("few", forwarded(fewPods[0], fewPods[len(fewPods)-1], time.Second))
	}
	b.bed.fill(ctx, many, 250)
	adds := rounds(b.options.rounds, func(_ int, note note) {
		note("many", b.bed.addOnce(ctx, many))
		note("few", b.bed.addOnce(ctx, few))
	})
	return append(results, packets.ratio("packets-250-pods", "packets/s", "many", "few"), adds.ratio("add-500-pods", "ms", "many", "few"))
}

// pod is a pod that is not deleted.
type pod struct {
	netns string
	addr  netip.Addr
}

// fill adds n pods that are not deleted.
func (b *testbed) fill(ctx context.Context, c *client, n int) []pod {
	all, pods := b.sandboxes.sandboxes(n), make([]pod, n)
	eachOf(ctx, n, 4, func(ctx context.Context, i int) {
		reply := must.Get(c.rpc.Add(ctx, &rpc.AddRequest{Attachment: key(all[i]), Netns: all[i].NetNS}))
		pods[i] = pod{all[i].NetNS, must.Get(netip.ParsePrefix(reply.GetAddresses()[0])).Addr()}
	})
	return pods
}

// forwarded sends small UDP packets from one pod to another as fast as possible, and returns how many arrived per
// second. The first one is answered, so that connection tracking takes them for a connection.
func forwarded(from, to pod, d time.Duration) float64 {
	const port = 9
	in := must.Get(ns.ListenPacket(to.netns, netip.AddrPortFrom(to.addr, port)))
	defer in.Close()
	must.OK(in.SetReadBuffer(4 << 20))
	out := must.Get(ns.Dial(context.Background(), from.netns, "udp", netip.AddrPortFrom(to.addr, port), netip.Addr{}))
	defer out.Close()

	end := time.Now().Add(d)
	must.OK(in.SetReadDeadline(end))
	must.Get(out.Write([]byte{0}))
	_, back, err := in.ReadFromUDPAddrPort(make([]byte, 1))
	must.OK(err)
	must.Get(in.WriteToUDPAddrPort([]byte{0}, back))
	go blast(out.(*net.UDPConn), end)
	return float64(count(in)) / d.Seconds()
}

func blast(out *net.UDPConn, end time.Time) {
	conn, msgs := ipv4.NewPacketConn(out), messages()
	for time.Now().Before(end) {
		_, _ = conn.WriteBatch(msgs, 0) // lost packets are not counted
	}
}

// count reads until the deadline.
func count(in *net.UDPConn) (packets int) {
	conn, msgs := ipv4.NewPacketConn(in), messages()
	for {
		n, err := conn.ReadBatch(msgs, 0)
		if err != nil {
			return packets
		}
		packets += n
	}
}

// messages returns a batch of small packets.
func messages() []ipv4.Message {
	msgs := make([]ipv4.Message, 64)
	for i := range msgs {
		msgs[i].Buffers = [][]byte{make([]byte, 64)}
	}
	return msgs
}
