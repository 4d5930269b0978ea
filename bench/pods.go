package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/berthnet/berth/bench/objects"
	"github.com/berthnet/berth/bench/usage"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/rpc"
	"github.com/berthnet/berth/lab/run/node"
)

const mebi = 1 << 20

// sizes tells what the plugin and an idle daemon weigh.
func sizes(_ context.Context, b *bench) ([]Result, error) {
	st, err := os.Stat(filepath.Join(b.options.binDir, "berth"))
	if err != nil {
		return nil, err
	}
	idle, err := rssAnon(b.bed.idle)
	if err != nil {
		return nil, err
	}
	return []Result{single("plugin-size", "MiB", float64(st.Size())/mebi, 0), single("daemon-idle", "MiB", idle, 0)}, nil
}

// rssAnon is the daemon's private memory in MiB.
func rssAnon(n *node.Node) (float64, error) {
	bytes, err := usage.Memory(n.PID())
	if err != nil {
		return 0, fmt.Errorf("daemon of %s: %w", n.Name, err)
	}
	return float64(bytes) / mebi, nil
}

// manyPods compares a node with 10 pods and one with 250, then 500.
func manyPods(ctx context.Context, b *bench) ([]Result, error) {
	few, err := dial(b.bed.few)
	if err != nil {
		return nil, err
	}
	defer few.conn.Close()
	many, err := dial(b.bed.many)
	if err != nil {
		return nil, err
	}
	defer many.conn.Close()

	fewPods, err := b.bed.fill(ctx, few, 10)
	if err != nil {
		return nil, err
	}
	pods, err := b.bed.fill(ctx, many, 250)
	if err != nil {
		return nil, err
	}
	memory, err := rssAnon(b.bed.many)
	if err != nil {
		return nil, err
	}
	results := []Result{single("daemon-250-pods", "MiB", memory, 0)}

	var rates [2][]float64
	for range 7 {
		for j, pair := range [][]pod{pods, fewPods} {
			r, err := forwarded(pair[0], pair[len(pair)-1], time.Second)
			if err != nil {
				return nil, err
			}
			rates[j] = append(rates[j], r)
		}
	}
	results = append(results, ratio("packets-250-pods", "packets/s", rates[0], rates[1]))

	if _, err := b.bed.fill(ctx, many, 250); err != nil {
		return nil, err
	}
	times, err := rounds(b.options.rounds, func(_ int, note note) error {
		slow, err := b.bed.addOnce(ctx, many)
		if err != nil {
			return err
		}
		fast, err := b.bed.addOnce(ctx, few)
		note("many", millis(slow))
		note("few", millis(fast))
		return err
	})
	if err != nil {
		return nil, err
	}
	return append(results, ratio("add-500-pods", "ms", times["many"], times["few"])), nil
}

// pod is one that stays.
type pod struct {
	netns string
	addr  netip.Addr
}

// fill adds n pods that stay.
func (b *testbed) fill(ctx context.Context, c *client, n int) ([]pod, error) {
	all, err := b.sandboxes.sandboxes(n)
	if err != nil {
		return nil, err
	}
	pods := make([]pod, n)
	err = objects.Each(ctx, n, 4, func(ctx context.Context, i int) error {
		reply, err := c.rpc.Add(ctx, &rpc.AddRequest{Attachment: key(all[i]), Netns: all[i].NetNS})
		if err != nil {
			return err
		}
		p, err := netip.ParsePrefix(reply.GetAddresses()[0])
		pods[i] = pod{all[i].NetNS, p.Addr()}
		return err
	})
	return pods, err
}

// forwarded sends small UDP packets from one pod to another as fast as it can,
// and tells how many a second arrived.
func forwarded(from, to pod, d time.Duration) (float64, error) {
	const port = 9
	in, err := ns.ListenPacket(to.netns, netip.AddrPortFrom(to.addr, port))
	if err != nil {
		return 0, err
	}
	defer in.Close()
	if err := in.SetReadBuffer(4 << 20); err != nil {
		return 0, err
	}
	out, err := ns.Dial(context.Background(), from.netns, "udp", netip.AddrPortFrom(to.addr, port), netip.Addr{})
	if err != nil {
		return 0, err
	}
	defer out.Close()

	end := time.Now().Add(d)
	if err := in.SetReadDeadline(end); err != nil {
		return 0, err
	}
	go blast(out.(*net.UDPConn), end)
	return float64(count(in)) / d.Seconds(), nil
}

const batchSize = 64

func blast(out *net.UDPConn, end time.Time) {
	conn, msgs := ipv4.NewPacketConn(out), messages()
	for time.Now().Before(end) {
		_, _ = conn.WriteBatch(msgs, 0) // what is lost is not counted
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

func messages() []ipv4.Message {
	msgs := make([]ipv4.Message, batchSize)
	for i := range msgs {
		msgs[i].Buffers = [][]byte{make([]byte, 64)}
	}
	return msgs
}
