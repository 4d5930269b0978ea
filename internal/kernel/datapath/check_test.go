package datapath

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

func TestCheckPodNamesEveryDifference(t *testing.T) {
	v := newVPC(t)
	p, other := v.pod(podA, podA6), v.pod(podC)
	h, s := v.host.nl, p.nl
	p.must(h.RouteDel(podRoute(p.links.HostIndex, p.want.IPv4)))
	p.must(h.RouteAdd(podRoute(other.links.HostIndex, p.want.IPv4)))
	p.must(h.RouteDel(podRoute(p.links.HostIndex, p.want.IPv6)))
	p.must(h.LinkSetDown(rtnl.LinkRef(p.links.HostIndex)))
	p.must(s.AddrDel(rtnl.LinkRef(p.links.PodIndex), podAddress(p.want.IPv4)))
	p.must(s.NeighSet(rtnl.PermanentNeighbour(p.links.PodIndex, gateway4, other.links.HostMAC)))
	p.must(s.RouteDel(&podSideRoutes(p.links.PodIndex, p.want.IPv6)[0]))
	p.must(s.LinkSetMTU(rtnl.LinkRef(p.links.PodIndex), 1400))
	p.want.MTU = 1500

	err := v.node.CheckPod(ctx, p.want)
	var m *Mismatch
	if !errors.As(err, &m) {
		t.Fatalf("error %v, want a Mismatch", err)
	}
	for _, part := range []string{"sends " + podA, "no route to " + podA6, p.want.HostIfName + " is down",
		"lacks address " + podA, "neighbour entry of 169.254.1.1", "lacks its route to ::/0", "MTU 1400"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if err := v.node.CheckPod(ctx, v.sandbox(podB).want); !strings.Contains(fmt.Sprint(err), "missing on the node; link eth0 is missing in the pod") {
		t.Errorf("check of a pod that was never added: %v", err)
	}
	p.want.Netns = "/run/netns/btdp-none"
	if err := v.node.CheckPod(ctx, p.want); !errors.Is(err, ErrNoNetns) {
		t.Errorf("error %v, want ErrNoNetns", err)
	}
}
