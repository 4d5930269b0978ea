package datapath

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/lab/run/poll"
)

// A pod may have several interfaces, of several networks. Each of its addresses
// can be reached, and what it says of itself leaves by the interface that has it;
// the pod's own connections leave by the first.
func TestFurtherInterface(t *testing.T) {
	v := newVPC(t)
	v.setup()
	first, other := v.pod(podA, podA6), v.pod(podB, podB6)
	further := &pod{space: first.space, want: first.want}
	further.want.IfName = "net1"
	further.want.HostIfName = HostLinkName("storage", first.name, "net1")
	further.want.IPv4, further.want.IPv6 = netip.MustParseAddr(podC), netip.MustParseAddr("2001:db8::53")
	v.add(further)
	patience, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	v.ok(poll.Until(patience, func() error { // routes change once duplicate address detection has ended
		if text := first.run("ip -6 addr show tentative"); text != "" {
			return errors.New(text)
		}
		return nil
	}))
	for _, again := range []*pod{further, first} { // changes nothing
		before := first.run("ip route show table all") + first.run("ip -6 route show table all") + first.run("ip rule")
		v.add(again)
		if after := first.run("ip route show table all") + first.run("ip -6 route show table all") + first.run("ip rule"); after != before {
			t.Errorf("AddPod of %s again changed\n%s\nto\n%s", again.want.IfName, before, after)
		}
	}
	v.check(first)
	v.check(further)
	first.run("ip -6 rule del priority 2048")
	if err := v.node.CheckPod(ctx, further.want); err == nil || !strings.Contains(err.Error(), "rule for packets from "+further.want.IPv6.String()) {
		t.Errorf("without its rule: %v", err)
	}
	v.add(further)

	for _, a := range []string{podA, podA6, podC, "2001:db8::53"} {
		server := first.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(a), 0).String())
		other.seenAs(server.String(), other.want.addrLike(a))
	}
	for _, b := range []string{podB, podB6} {
		server := other.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(b), 0).String())
		first.seenAs(server.String(), first.want.addrLike(b))
		from := further.want.addrLike(b)
		if got, err := first.dialFrom(from, server.String(), dialTimeout); err != nil || got.String() != from {
			t.Errorf("from %s to %s: seen as %s, %v", from, b, got, err)
		}
	}

	v.remove(further)
	v.check(first)
	server := first.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(podA), 0).String())
	other.seenAs(server.String(), podB)
	v.add(further) // comes back with another number of its link
	v.check(further)
	server = first.serveTCP(netip.AddrPortFrom(netip.MustParseAddr(podC), 0).String())
	other.seenAs(server.String(), podB)
}

// addrLike is the pod's address of the family of another.
func (p Pod) addrLike(of string) string {
	if netip.MustParseAddr(of).Is4() {
		return p.IPv4.String()
	}
	return p.IPv6.String()
}
