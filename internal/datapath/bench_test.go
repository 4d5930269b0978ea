package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/bare"
)

// benchPods are sandboxes to add, so many that removal can be in one go.
func benchPods(b *testing.B, v *vpc, size int, dual bool) []*pod {
	b.Helper()
	addr4, addr6 := netip.MustParseAddr("10.0.64.1"), netip.MustParseAddr("2001:db8:0:9::1")
	var pods []*pod
	for range size {
		p := v.sandbox(addr4.String())
		if dual {
			p.want.IPv6 = addr6
		}
		addr4, addr6 = addr4.Next(), addr6.Next()
		pods = append(pods, p)
	}
	return pods
}

// BenchmarkAddPod holds AddPod against the bare netlink calls that it makes,
// turn by turn in one run, and reports both medians and their ratio (docs/design.md,
// section 10, daemon-add). Removal is not timed.
func BenchmarkAddPod(b *testing.B) {
	for _, c := range []struct {
		name    string
		dual    bool
		present int // pods on the node already
	}{{"ipv4", false, 0}, {"dual", true, 0}, {"ipv4-250-pods", false, 250}} {
		b.Run(c.name, func(b *testing.B) {
			v := newVPC(b)
			others := benchPods(b, v, c.present, false)
			for _, p := range others {
				p.want.IPv4 = netip.AddrFrom4([4]byte{10, 0, 128, p.want.IPv4.As4()[3]})
				if err := addPod(v, p); err != nil {
					b.Fatal(err)
				}
			}
			pods := benchPods(b, v, 64, c.dual)
			host, err := netlink.NewHandleAt(v.host.handle, unix.NETLINK_ROUTE)
			if err != nil {
				b.Fatal(err)
			}
			defer host.Close()
			var add, floor []time.Duration
			for i := 0; b.Loop(); i++ {
				p := pods[i%len(pods)]
				if i > 0 && i%len(pods) == 0 {
					b.StopTimer()
					reapAll(b, v, pods)
					b.StartTimer()
				}
				start := time.Now()
				if i%2 == i/len(pods)%2 { // each sandbox takes both turns
					err = addPod(v, p)
					add = append(add, time.Since(start))
				} else {
					err = addBare(host, p)
					floor = append(floor, time.Since(start))
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(0, "ns/op") // a mean of two things
			if len(add) > 0 && len(floor) > 0 {
				b.ReportMetric(median(add).Seconds()*1e6, "add-µs")
				b.ReportMetric(median(floor).Seconds()*1e6, "bare-µs")
				b.ReportMetric(float64(median(add))/float64(median(floor)), "ratio")
			}
			reapAll(b, v, append(pods, others...))
		})
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func reapAll(b *testing.B, v *vpc, pods []*pod) {
	b.Helper()
	var names []string
	for _, p := range pods {
		if err := v.node.DetachPod(ctx, p.want); err != nil {
			b.Fatal(err)
		}
		names = append(names, p.want.HostIfName)
	}
	if err := v.node.ReapLinks(ctx, names); err != nil {
		b.Fatal(err)
	}
}

func addPod(v *vpc, p *pod) error {
	_, err := v.node.AddPod(ctx, p.want)
	return err
}

func addBare(host *netlink.Handle, p *pod) error {
	w := p.want.complete(1500)
	return bare.Add(host, bare.Link{Netns: w.Netns, IfName: w.IfName, HostIf: w.HostIfName, HostMAC: w.HostMAC,
		PodMAC: w.PodMAC, MTU: w.MTU, Addrs: w.Addrs(), Table: PodTable})
}

// BenchmarkRoundTrip is a datagram from a pod on the secondary ENI to a pod on
// the primary and back, with few and many pods (packets-250-pods).
func BenchmarkRoundTrip(b *testing.B) {
	for _, present := range []int{10, 250} {
		b.Run(fmt.Sprintf("%d-pods", present), func(b *testing.B) {
			v := newVPC(b)
			for i, p := range benchPods(b, v, present, false) {
				p.want.IPv4 = netip.AddrFrom4([4]byte{10, 0, 128, byte(i)})
				if err := addPod(v, p); err != nil {
					b.Fatal(err)
				}
			}
			from, to := v.pod(podB), v.pod(podA)
			var server, client net.Conn
			to.in(func() (err error) {
				server, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(podA), Port: 7}, &net.UDPAddr{IP: net.ParseIP(podB), Port: 7})
				return err
			})
			from.in(func() (err error) {
				client, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(podB), Port: 7}, &net.UDPAddr{IP: net.ParseIP(podA), Port: 7})
				return err
			})
			defer func() { _ = client.Close(); _ = server.Close() }()
			go func() {
				buf := make([]byte, 64)
				for {
					if _, err := server.Read(buf); err != nil {
						return
					}
					_, _ = server.Write(buf)
				}
			}()
			buf := make([]byte, 64)
			for b.Loop() {
				_, err := client.Write(buf)
				if err == nil {
					_, err = client.Read(buf)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDetachPod(b *testing.B) {
	v := newVPC(b)
	pods := benchPods(b, v, 64, false)
	for i := 0; b.Loop(); i++ {
		p := pods[i%len(pods)]
		b.StopTimer()
		if err := addPod(v, p); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := v.node.DetachPod(ctx, p.want); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReapLinks shows what sharing the kernel's wait is worth.
func BenchmarkReapLinks(b *testing.B) {
	for _, size := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			v := newVPC(b)
			pods := benchPods(b, v, size, false)
			var names []string
			for _, p := range pods {
				names = append(names, p.want.HostIfName)
			}
			for b.Loop() {
				b.StopTimer()
				for _, p := range pods {
					if err := addPod(v, p); err != nil {
						b.Fatal(err)
					}
					if err := v.node.DetachPod(ctx, p.want); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				if err := v.node.ReapLinks(ctx, names); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
