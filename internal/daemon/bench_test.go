package daemon

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/datapath/bare"
)

// BenchmarkAdd sets ADD in the daemon against the netlink calls that it makes,
// in alternation (design.md section 10, daemon-add). Removal is not timed.
func BenchmarkAdd(b *testing.B) {
	m := newMachine(b, 64)
	m.dir = shmDir(b)
	s := m.start(time.Millisecond)
	ns := mustSpace(b)
	var daemon, floor []time.Duration
	for i := 0; b.Loop(); i++ {
		key := keyFor(fmt.Sprint("c", i))
		begun := time.Now()
		if _, err := s.add(context.Background(), addRequest{key: key, netns: ns}); err != nil {
			b.Fatal(err)
		}
		daemon = append(daemon, time.Since(begun))
		if err := s.del(context.Background(), key); err != nil {
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
