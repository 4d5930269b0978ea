package ovn

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/poll"
)

// A network with an uplink and the outside reach each other, with the network's own addresses; a network without an
// uplink is isolated.
func TestUplink(t *testing.T) {
	b := newBench(t)
	b.ok(b.ovn.OpenUplink(b.ctx))
	subnet, router := netip.MustParsePrefix("192.168.0.0/24"), UplinkAddr(0)
	b.ok(b.ovn.Route(subnet, router.Addr()))
	web, apart := port(1, "192.168.0.10", "node-a", open), port(2, "192.168.7.10", "node-b", open)
	gateways := []netip.Prefix{netip.MustParsePrefix("192.168.0.1/24")}
	b.ok(b.ovn.Apply(b.ctx, State{
		Groups: []Group{{ID: open, Rules: []Rule{{Egress: true}, {Protocol: "tcp"}}}},
		Networks: []Network{
			{ID: blue, Gateways: gateways, Uplink: router, Ports: []Port{web}},
			{ID: green, Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.7.1/24")}, Ports: []Port{apart}},
		},
	}))
	in, out := b.pod("a", web, "192.168.0.1"), b.pod("b", apart, "192.168.7.1")
	outside, err := echo.Serve(b.ovn.opts.Netns)
	b.ok(err)
	t.Cleanup(func() { _ = outside.Close() })
	b.reaches(in, UplinkGateway.String())
	b.doesNotReach(out, UplinkGateway.String())
	fromOutside := &plug.Want{Ref: plug.Ref{Pod: plug.Pod{Netns: b.ovn.opts.Netns}}}
	b.reaches(fromOutside, "192.168.0.10")
	r, err := echo.Ask(b.ctx, in.Pod.Netns, "tcp", netip.AddrPortFrom(UplinkGateway, echo.Port), netip.Addr{}, "who am I")
	if err != nil || r.You != web.Addrs[0] {
		t.Errorf("source seen outside = %s, want %s: %v", r.You, web.Addrs[0], err)
	}
	// Without an uplink, the router is recreated.
	b.ok(b.ovn.Apply(b.ctx, State{
		Groups:   []Group{{ID: open, Rules: []Rule{{Egress: true}, {Protocol: "tcp"}}}},
		Networks: []Network{{ID: blue, Gateways: gateways, Ports: []Port{web}}},
	}))
	b.ok(poll.Retry(b.ctx, func() error {
		if b.ask(in, UplinkGateway.String(), time.Second) == nil {
			return errors.New("pod is still reachable")
		}
		return nil
	}, func(error) bool { return b.ctx.Err() == nil }))
}

// The uplink is created once, before the first router that uses it.
func TestUplinkChanges(t *testing.T) {
	with := State{Networks: []Network{{ID: blue, Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.0.1/24")}, Uplink: UplinkAddr(3)}}}
	var made []string
	for _, c := range changes(State{}, with, true) {
		made = append(made, strings.Join(c, " "))
	}
	text := strings.Join(made, "\n")
	for _, want := range []string{"--may-exist ls-add uplink", "172.28.0.5/24", "lr-route-add " + blue + "-router 0.0.0.0/0 172.28.0.1", "router-port=" + blue + "-router-up"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Index(text, "ls-add uplink") > strings.Index(text, "lr-add ") {
		t.Errorf("uplink is created after a router:\n%s", text)
	}
	if c := changes(with, with, false); len(c) != 0 {
		t.Errorf("changes without a difference = %q, want none", c)
	}
}
