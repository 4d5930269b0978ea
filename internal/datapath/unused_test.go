package datapath

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// refused wants a connection to an address to be refused at once by the node.
func (v *vpc) refused(free string) {
	v.t.Helper()
	_, err := v.router.dialFrom("", net.JoinHostPort(free, "80"), dialTimeout)
	if err == nil || !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENETUNREACH) {
		v.t.Errorf("%s: %v, want unreachable", free, err)
	}
}

// unused are the prefixes that are refused where no pod has the address.
func (v *vpc) unused(want ...string) {
	v.t.Helper()
	var have []string
	for _, p := range v.inventory().Unused {
		have = append(have, p.String())
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(have, want) {
		v.t.Errorf("refused are %v, want %v", have, want)
	}
}

// A packet to an address of an ENI that no pod has is refused by the node. Sent on by
// the default route, it would come back to the VPC with a source that is none of the
// node's, which the VPC drops.
func TestAddressWithoutAPodIsRefused(t *testing.T) {
	v := newVPC(t)
	v.setUplink(Uplink{ID: "eni-1", MAC: v.uplinks.PrimaryMAC, Primary: true, PrimaryIPv4: netip.MustParseAddr(nodeAddr),
		Prefixes: []netip.Prefix{netip.MustParsePrefix(firstPods), netip.MustParsePrefix(firstPods6)}})
	v.unused(eniPrefix, eniPrefix6, firstPods, firstPods6)
	for _, free := range []string{"10.0.0.40", "2001:db8:0:0:1::8", "10.0.0.70", "2001:db8:0:0:2::8"} {
		before := v.router.link("r0").Attrs().Statistics.RxPackets
		v.refused(free)
		if n := v.router.link("r0").Attrs().Statistics.RxPackets - before; n > 20 {
			t.Errorf("%s: %d packets came back from the node", free, n)
		}
	}

	p := v.pod("10.0.0.40")
	server := p.serveTCP("10.0.0.40:0")
	v.router.must(func() error { _, err := v.router.dialTCP(server.String()); return err }())
	v.check(p)
	v.remove(p)
	v.refused("10.0.0.40")

	// Without the route the packet goes back, so that this test can see it.
	v.router.sysctl("net/ipv4/conf/r0/proxy_arp", "1")
	lost := unusedRoute(netip.MustParsePrefix(eniPrefix))
	v.host.must(v.host.nl.RouteDel(&lost))
	within(t, "a packet that goes back without the route", func() bool {
		before := v.router.link("r0").Attrs().Statistics.RxPackets
		_, _ = v.router.dialFrom("", "10.0.0.40:80", 200*time.Millisecond)
		return v.router.link("r0").Attrs().Statistics.RxPackets > before
	})
	v.ok(v.node.SetUplink(ctx, v.uplink()))
	v.refused("10.0.0.40")
}

// The routes follow the ENIs' addresses, also those that changed while no daemon ran.
func TestUnusedAddressesFollowTheENI(t *testing.T) {
	v := newVPC(t)
	v.unused(eniPrefix, eniPrefix6)
	other := v.uplink()
	other.Prefixes = nil
	other.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.50")}
	v.setUplink(other)
	v.unused("10.0.0.50/32")

	// Another start of the daemon, which knows of no address before Repair.
	v.node = v.host.open()
	v.setup()
	v.unused("10.0.0.50/32")
	moved := v.uplink()
	want := Wanted{Config: v.settings(), Uplinks: []Uplink{moved}}
	v.repair(want)
	v.unused(eniPrefix, eniPrefix6)
	if did := v.repair(want); did != "" {
		t.Errorf("a second repair did %s", did)
	}
	v.ok(v.node.RemoveUplink(ctx, moved.Number))
	v.unused()
}
