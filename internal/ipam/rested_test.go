package ipam

import (
	"net/netip"
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness/check"
)

// Addresses that had cooled before a restart come after those that were never used, in the order of
// release, whether the cloud lists them before or after the records are read.
func TestOrderOfFreedomOutlastsARestart(t *testing.T) {
	singles := Group{ID: "eni-a", Addresses: addrs("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")}
	prefix := Group{ID: "eni-a", Prefixes: prefixes("10.0.0.0/30")}
	for _, c := range []struct {
		name   string
		group  Group
		freed  []netip.Addr // the earliest release first
		listed bool         // before the records are read
		want   []netip.Addr
	}{
		{"singles", singles, addrs("10.0.0.2", "10.0.0.1"), true, addrs("10.0.0.3", "10.0.0.4", "10.0.0.2", "10.0.0.1")},
		{"singles listed later", singles, addrs("10.0.0.2", "10.0.0.1"), false, addrs("10.0.0.3", "10.0.0.4", "10.0.0.2", "10.0.0.1")},
		{"prefix", prefix, addrs("10.0.0.1", "10.0.0.0"), true, addrs("10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.0")},
		{"prefix listed later", prefix, addrs("10.0.0.1", "10.0.0.0"), false, addrs("10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.0")},
		{"of no group", singles, addrs("10.9.9.9"), true, addrs("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := New[string](DefaultCooling)
			if c.listed {
				a.SetGroup(c.group)
			}
			for i, addr := range c.freed {
				a.Cool(addr, t0.Add(-2*DefaultCooling).Add(time.Duration(i)*time.Second), t0)
			}
			if !c.listed {
				a.SetGroup(c.group)
			}
			a.SetReady(c.group.ID, true)
			var got []netip.Addr
			for _, key := range []string{"a", "b", "c", "d"} {
				got = append(got, mustTake(t, a, key, t0))
			}
			check.Equal(t, got, c.want, "handed out")
		})
	}
}
