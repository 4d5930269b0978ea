package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

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

// benchAdd times add for batches of fresh sandboxes; removal is not timed.
func benchAdd(b *testing.B, dual bool, add func(v *vpc, p *pod) error) {
	v := newVPC(b)
	pods := benchPods(b, v, 64, dual)
	for i := 0; b.Loop(); i++ {
		p := pods[i%len(pods)]
		if i > 0 && i%len(pods) == 0 {
			b.StopTimer()
			reapAll(b, v, pods)
			b.StartTimer()
		}
		if err := add(v, p); err != nil {
			b.Fatal(err)
		}
	}
}

func reapAll(b *testing.B, v *vpc, pods []*pod) {
	b.Helper()
	var names []string
	for _, p := range pods {
		if err := v.node.DetachPod(context.Background(), p.want); err != nil {
			b.Fatal(err)
		}
		names = append(names, p.want.HostIfName)
	}
	if err := v.node.ReapLinks(context.Background(), names); err != nil {
		b.Fatal(err)
	}
}

func addPod(v *vpc, p *pod) error {
	_, err := v.node.AddPod(context.Background(), p.want)
	return err
}

func addBare(b *testing.B) func(v *vpc, p *pod) error {
	var h *netlink.Handle
	b.Cleanup(func() {
		if h != nil {
			h.Close()
		}
	})
	return func(v *vpc, p *pod) (err error) {
		if h == nil {
			if h, err = netlink.NewHandleAt(v.host.handle, unix.NETLINK_ROUTE); err != nil {
				return err
			}
		}
		w := p.want.complete(1500)
		return bare.Add(h, bare.Link{Netns: w.Netns, IfName: w.IfName, HostIf: w.HostIfName, HostMAC: w.HostMAC,
			PodMAC: w.PodMAC, MTU: w.MTU, Addrs: w.Addrs(), Table: PodTable})
	}
}

func BenchmarkAddPod(b *testing.B)          { benchAdd(b, false, addPod) }
func BenchmarkAddPodDual(b *testing.B)      { benchAdd(b, true, addPod) }
func BenchmarkBareNetlink(b *testing.B)     { benchAdd(b, false, addBare(b)) }
func BenchmarkBareNetlinkDual(b *testing.B) { benchAdd(b, true, addBare(b)) }

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
		if err := v.node.DetachPod(context.Background(), p.want); err != nil {
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
					if err := v.node.DetachPod(context.Background(), p.want); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				if err := v.node.ReapLinks(context.Background(), names); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
