//go:build guest && e2e

package crash

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestEgressInvariantsFindFaults adds and removes state in every kind of pod, which oracle.Egress must
// find: without it, a soak without violations would mean nothing.
func TestEgressInvariantsFindFaults(t *testing.T) {
	m := egressMode
	var l *lab.Lab
	t.Cleanup(func() { harness.OK(t, forget(l)) }) // the control plane is others' too
	l = harness.Raise(t, m.lab(1, 1))
	ctx := harness.Deadline(t, patience)
	r := &round{soak: ctx, tally: newTally(m.title()), mode: m}
	u, err := newEgressUsers(ctx, r, l)
	harness.OK(t, err)
	one := int32(1)
	e := &v1alpha1.Egress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gate-1", Name: "a"},
		Spec: v1alpha1.EgressSpec{
			Destinations: []string{"203.0.113.0/24", "::/0"}, Replicas: &one, SessionAffinity: corev1.ServiceAffinityNone,
			AllowedNamespaces: &v1alpha1.VPCNamespaces{Names: []string{"shop"}},
		},
	}
	harness.OK(t, u.kube.Create(ctx, e))
	n := l.Nodes()[0]
	client, err := n.AddPod(ctx, "client", node.PodOptions{Namespace: "shop", Annotations: map[string]string{v1alpha1.AnnotationEgressPrefix + "gate-1": "a"}})
	harness.OK(t, err)
	other, err := n.AddPod(ctx, "other", node.PodOptions{Namespace: "bank"})
	harness.OK(t, err)
	harness.Settle(t, l)
	harness.OK(t, oracle.EgressTraffic(ctx, l))
	gateway := l.Gateways(slots[0])[0]
	harness.OK(t, gateway.Pause()) // nobody mends it
	harness.OK(t, n.Stop(patience))
	t.Cleanup(func() { harness.OK(t, errors.Join(gateway.Resume(), n.Start())) })
	if err := errors.Join(oracle.Egress(ctx, l)...); err != nil {
		t.Fatal(err)
	}
	stray := func(link string, table int) *netlink.Route {
		return &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(10, 66, 0, 1).To4(), Mask: net.CIDRMask(32, 32)}, Table: table, Scope: netlink.SCOPE_LINK, LinkIndex: indexOf(t, client, link)}
	}
	port := netlink.Fou{Family: unix.AF_INET, Port: 5555, Protocol: unix.IPPROTO_IPIP, EncapType: netlink.FOU_ENCAP_DIRECT}
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = unix.AF_INET, 2100, 118
	for _, c := range []struct {
		what       string
		pod        *node.Pod
		make, undo func(*netlink.Handle) error
		want       string
	}{
		{"a route in a client", client, func(h *netlink.Handle) error { return h.RouteAdd(stray(tunnel.Link4, 117)) },
			func(h *netlink.Handle) error { return h.RouteDel(stray(tunnel.Link4, 117)) }, "10.66.0.1/32"},
		{"a client's rule is gone", client, func(h *netlink.Handle) error { return h.RuleDel(rule) },
			func(h *netlink.Handle) error { return h.RuleAdd(rule) }, "2100 IPv4 table 118\" is missing"},
		{"a client's tunnel has another MTU", client, func(h *netlink.Handle) error { return setMTU(h, 1400) },
			func(h *netlink.Handle) error { return setMTU(h, 1500-48) }, "mtu 1452 up true\" is missing"},
		{"a port in a pod that is no client", other, func(h *netlink.Handle) error { return h.FouAdd(port) },
			func(h *netlink.Handle) error { return h.FouDel(port) }, "udp 5555 of IPv4 has protocol 4\" exists and should not"},
		{"a rule in a pod that is no client", other, func(h *netlink.Handle) error { return h.RuleAdd(rule) },
			func(h *netlink.Handle) error { return h.RuleDel(rule) }, "2100 IPv4 table 118\" exists and should not"},
		{"a way to somebody in a gateway", gateway.Pod, func(h *netlink.Handle) error { return h.RouteAdd(stray(tunnel.Link4, 117)) },
			func(h *netlink.Handle) error { return h.RouteDel(stray(tunnel.Link4, 117)) }, "10.66.0.1/32"},
		{"somebody whom a gateway serves", gateway.Pod, func(*netlink.Handle) error { return serve(gateway.Pod, true) },
			func(*netlink.Handle) error { return serve(gateway.Pod, false) }, "it serves map["},
	} {
		on(t, c.pod, c.make)
		err := errors.Join(oracle.Egress(ctx, l)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: found %v, want %q", c.what, err, c.want)
		}
		on(t, c.pod, c.undo)
		if err := errors.Join(oracle.Egress(ctx, l)...); err != nil {
			t.Fatalf("%s, and back: %v", c.what, err)
		}
	}
}

func on(t *testing.T, p *node.Pod, do func(*netlink.Handle) error) {
	t.Helper()
	at, err := netns.GetFromPath(p.Netns())
	harness.OK(t, err)
	defer at.Close()
	h, err := netlink.NewHandleAt(at, unix.NETLINK_ROUTE, unix.NETLINK_GENERIC)
	harness.OK(t, err)
	defer h.Close()
	harness.OK(t, do(h))
}

func indexOf(t *testing.T, p *node.Pod, link string) (index int) {
	t.Helper()
	on(t, p, func(h *netlink.Handle) error {
		l, err := h.LinkByName(link)
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	})
	return index
}

func setMTU(h *netlink.Handle, mtu int) error {
	l, err := h.LinkByName(tunnel.Link6)
	if err != nil {
		return err
	}
	return h.LinkSetMTU(l, mtu)
}

// serve adds or removes a client of a gateway.
func serve(p *node.Pod, add bool) error {
	at, err := netns.GetFromPath(p.Netns())
	if err != nil {
		return err
	}
	defer at.Close()
	c, err := nftables.New(nftables.WithNetNSFd(int(at)))
	if err != nil {
		return err
	}
	set, err := c.GetSetByName(&nftables.Table{Name: tunnel.Table, Family: nftables.TableFamilyINet}, "clients-4")
	if err != nil {
		return err
	}
	elements := []nftables.SetElement{{Key: []byte{10, 66, 0, 1, 10, 66, 0, 1}}}
	if add {
		err = c.SetAddElements(set, elements)
	} else {
		err = c.SetDeleteElements(set, elements)
	}
	return errors.Join(err, c.Flush())
}
