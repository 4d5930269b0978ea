package daemon

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/datapath/bare"
	"github.com/berthnet/berth/internal/rpc"
)

// BenchmarkAdd sets ADD against the netlink calls that it makes (docs/design.md,
// section 10, daemon-add): in the daemon, and seen by a gRPC client, which adds
// the waking of some threads. Bursts of eight pods by one way and by the other
// in turn; removal is not timed.
func BenchmarkAdd(b *testing.B) {
	const burst = 8
	m := newMachine(b, 64)
	m.dir = shmDir(b)
	s := m.start(time.Millisecond)
	conn, err := grpc.NewClient("unix://"+filepath.Join(m.dir, "berthd.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	client := rpc.NewNodeClient(conn)
	var spaces []string
	for range burst {
		spaces = append(spaces, mustSpace(b))
	}
	var inDaemon, called, floor []time.Duration
	for b.Loop() {
		for i, ns := range spaces {
			called = append(called, timed(b, func() error {
				_, err := client.Add(context.Background(), addOf(fmt.Sprint("c", i), ns))
				return err
			}))
		}
		delAll(b, s, burst)
		for i, ns := range spaces {
			inDaemon = append(inDaemon, timed(b, func() error {
				_, err := s.add(context.Background(), addRequest{key: keyFor(fmt.Sprint("c", i)), netns: ns})
				return err
			}))
		}
		delAll(b, s, burst)
		for i, ns := range spaces {
			link := bare.Link{
				Netns: ns, IfName: "eth0", HostIf: fmt.Sprint("bare", i), MTU: 9001, Addrs: m.addrs[i : i+1], Table: 100,
				HostMAC: net.HardwareAddr{2, 0, 0, 0, 1, byte(i)}, PodMAC: net.HardwareAddr{2, 0, 0, 0, 2, byte(i)},
			}
			floor = append(floor, timed(b, func() error { return bare.Add(m.net, link) }))
		}
		for i := range spaces {
			l, err := m.net.LinkByName(fmt.Sprint("bare", i))
			if err == nil {
				err = m.net.LinkDel(l)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	add, call, bareAdd := median(inDaemon), median(called), median(floor)
	b.ReportMetric(float64(add.Microseconds()), "us/add-p50")
	b.ReportMetric(float64(call.Microseconds()), "us/call-p50")
	b.ReportMetric(float64(bareAdd.Microseconds()), "us/bare-p50")
	b.ReportMetric(float64(add)/float64(bareAdd), "ratio")
	b.ReportMetric(float64(call)/float64(bareAdd), "call-ratio")
	b.ReportMetric(0, "ns/op")
}

// delAll removes what a burst added and waits until it is gone.
func delAll(b *testing.B, s *started, burst int) {
	b.Helper()
	for i := range burst {
		if err := s.del(context.Background(), keyFor(fmt.Sprint("c", i))); err != nil {
			b.Fatal(err)
		}
	}
	waitForT(b, func() bool { return s.reaper.count() == 0 })
}

func timed(b *testing.B, f func() error) time.Duration {
	begun := time.Now()
	if err := f(); err != nil {
		b.Fatal(err)
	}
	return time.Since(begun)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

var (
	_ Upkeep = (*VPCNetwork)(nil)
	_ Upkeep = (*RoutedNetwork)(nil)
	_ Kernel = (*datapath.Node)(nil)
)
