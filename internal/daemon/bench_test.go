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

// BenchmarkAdd sets ADD in the daemon, the gRPC call included, against the
// netlink calls that it makes, in alternation (design.md section 10,
// daemon-add). Removal is not timed.
func BenchmarkAdd(b *testing.B) {
	m := newMachine(b, 64)
	m.dir = shmDir(b)
	s := m.start(time.Millisecond)
	conn, err := grpc.NewClient("unix://"+filepath.Join(m.dir, "berthd.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	client := rpc.NewNodeClient(conn)
	ns := mustSpace(b)
	var daemon, floor []time.Duration
	for i := 0; b.Loop(); i++ {
		container := fmt.Sprint("c", i)
		begun := time.Now()
		if _, err := client.Add(context.Background(), addOf(container, ns)); err != nil {
			b.Fatal(err)
		}
		daemon = append(daemon, time.Since(begun))
		if err := s.del(context.Background(), keyFor(container)); err != nil {
			b.Fatal(err)
		}
		waitForT(b, func() bool { return s.reaper.count() == 0 })

		link := bare.Link{
			Netns: ns, IfName: "eth0", HostIf: "bare0", MTU: 9001, Addrs: m.addrs[:1], Table: 100,
			HostMAC: net.HardwareAddr{2, 0, 0, 0, 1, 1}, PodMAC: net.HardwareAddr{2, 0, 0, 0, 1, 2},
		}
		begun = time.Now()
		if err := bare.Add(m.net, link); err != nil {
			b.Fatal(err)
		}
		floor = append(floor, time.Since(begun))
		l, err := m.net.LinkByName("bare0")
		if err == nil {
			err = m.net.LinkDel(l)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(daemon)
	slices.Sort(floor)
	d, f := daemon[len(daemon)/2], floor[len(floor)/2]
	b.ReportMetric(float64(d.Microseconds()), "us/add-p50")
	b.ReportMetric(float64(f.Microseconds()), "us/bare-p50")
	b.ReportMetric(float64(d)/float64(f), "ratio")
	b.ReportMetric(0, "ns/op")
}

var _ Upkeep = (*Network)(nil)
var _ Kernel = (*datapath.Node)(nil)
