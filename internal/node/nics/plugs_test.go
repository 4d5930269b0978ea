package nics

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugfake"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/attachment"
)

// IPv6 is turned on before the node routes it to a port. A failure is reported, and nothing is plugged.
func TestRoutedPortsNeedIPv6(t *testing.T) {
	addresses := map[string][]attachment.NICAddress{
		"IPv4": {{CIDR: netip.MustParsePrefix("10.0.0.9/24"), Gateway: netip.MustParseAddr("10.0.0.1")}},
		"IPv6": {{CIDR: netip.MustParsePrefix("2001:db8::9/64"), Gateway: netip.MustParseAddr("fe80:ec2::1")}},
	}
	for _, tc := range []struct {
		kind   plug.Kind
		family string
		needs  bool
	}{{plug.RoutedVLAN, "IPv6", true}, {plug.RoutedVLAN, "IPv4", false}, {plug.VLAN, "IPv6", false}} {
		noIPv6 := errors.New("the kernel has no IPv6")
		var asked int
		var outcome error
		node := plugfake.NewNode()
		p := newPlugs(Config{
			Plugger: node.Open(nil), NeedIPv6: func(context.Context) error { asked++; return noIPv6 }, Clock: clock.Real{}, Metrics: NewMetrics(prometheus.NewRegistry()),
		}, func(_ attachment.Record, _ attachment.NIC, _ string, err error) { outcome = err })
		nic := attachment.NIC{
			Port: portID(1, 0), IfName: "eth0", MAC: mac.Addr{0x0a, 0xff, 0xff, 0, 0, 7}, Addresses: addresses[tc.family],
			Plug: attachment.Plug{Type: string(tc.kind), Trunk: "0a:ff:ff:00:00:01", VLAN: 7},
		}
		if tc.kind == plug.RoutedVLAN {
			nic.Plug.Enforcing = string(plug.Strict)
		}
		_, err := p.Plug(t.Context(), recordOf(1, nic), nic)
		if errors.Is(err, noIPv6) != tc.needs || errors.Is(outcome, noIPv6) != tc.needs || (asked > 0) != tc.needs || len(node.Plugged()) > 0 == tc.needs {
			t.Errorf("%s with %s: %v, reported %v, asked %d times, plugged are %v", tc.kind, tc.family, err, outcome, asked, node.Plugged())
		}
		noIPv6 = nil
		if _, err := p.Plug(t.Context(), recordOf(1, nic), nic); err != nil || outcome != nil || len(node.Plugged()) != 1 {
			t.Errorf("%s with %s: %v, reported %v, plugged are %v", tc.kind, tc.family, err, outcome, node.Plugged())
		}
	}
}
