package datapath

import (
	"fmt"
	"net/netip"
	"testing"
)

// BenchmarkReapLinks shows what sharing the kernel's wait is worth.
func BenchmarkReapLinks(b *testing.B) {
	for _, size := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			v := newVPC(b)
			var pods []*pod
			var names []string
			addr := netip.MustParseAddr("10.0.64.1")
			for range size {
				p := v.sandbox(addr.String())
				pods, names = append(pods, p), append(names, p.want.HostIfName)
				addr = addr.Next()
			}
			for b.Loop() {
				b.StopTimer()
				for _, p := range pods {
					v.add(p)
					v.detach(p)
				}
				b.StartTimer()
				if err := v.node.ReapLinks(ctx, names); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
