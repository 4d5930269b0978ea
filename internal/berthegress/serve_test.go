package berthegress

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/web/webtest"
)

// Pods that hold connections to a gateway keep neither its kubelet's probes nor scrapes out.
func TestAttacksOnGateways(t *testing.T) {
	node, scraper := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.1.0.5")
	webtest.Try(t, func(t *testing.T) webtest.Server {
		a, _ := newTestAgent(t, &fakeKernel{})
		return webtest.Server{
			At: netip.MustParseAddr("10.1.0.9"), Slow: "/clients/x?address=10.0.0.7",
			Serve: func(ctx context.Context, l net.Listener) error { return a.serve(ctx, l, []netip.Addr{node}) },
			Path:  "/metrics", Honest: []netip.Addr{node, scraper},
		}
	})
}
