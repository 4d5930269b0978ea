package policytable

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// The table in a pod's network namespace lets the pod's node through, and judges the interfaces that it is for alone.
func TestNodesReachPodsWithTheirOwnTable(t *testing.T) {
	pod, other := pair("10.0.1.2", "fd00:1::2"), pair("10.0.2.2", "fd00:2::2")
	w := newWorld(t, [][2]netip.Addr{pod, other})
	path := w.hosts[pod[0]].path
	closed := Pod{Addrs: pod[:], Policies: []*policy.Policy{isolated()}}
	for _, c := range []struct {
		links   []string
		reached bool // by another pod
	}{{[]string{"eth0"}, false}, {[]string{"eth1"}, true}} {
		table, err := New(w.node).OpenInside(path, rtnl.NetnsID{}, c.links)
		must(t, err)
		must(t, table.Apply([]Pod{closed}, noElements, nil))
		if present, err := table.Present(); !present {
			t.Errorf("the table is not as applied: %v", err)
		}
		for _, a := range pod {
			to := netip.AddrPortFrom(a, 80)
			listener, err := ns.Listen(path, to)
			must(t, err)
			must(t, rtnl.InNetns(w.node, func() error {
				conn, err := net.DialTimeout("tcp", to.String(), patience)
				if err == nil {
					err = conn.Close()
				}
				return err
			}))
			ctx, cancel := context.WithTimeout(t.Context(), map[bool]time.Duration{true: patience, false: 100 * time.Millisecond}[c.reached])
			from := other[map[bool]int{true: 0, false: 1}[a.Is4()]]
			if conn, err := ns.Dial(ctx, w.hosts[from].path, "tcp", to, from); (err == nil) != c.reached {
				t.Errorf("%s of interfaces %v is reached by another pod: %v", a, c.links, err)
			} else if err == nil {
				_ = conn.Close()
			}
			cancel()
			must(t, listener.Close())
		}
		must(t, table.Remove())
		must(t, table.Close())
	}
	if _, err := New(w.node).OpenInside(path, rtnl.NetnsID{Dev: 1, Inode: 1}, nil); err == nil {
		t.Error("another namespace than the pod's is entered")
	}
}
