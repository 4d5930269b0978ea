//go:build e2e

package neutron

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hybrid"
	"github.com/berthnet/berth/internal/kernel/plug/ovs"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/openstack"
	"github.com/berthnet/berth/test/harness"
)

// pod is one with a port of Neutron's.
type pod struct {
	*podif.Namespace
	port    vpcport.Port
	want    plug.Want
	plugger plug.Plugger
}

// plugger is a node's.
func plugger(t *testing.T, n *openstack.Node) plug.Plugger {
	t.Helper()
	db, err := ovsdb.New(n.OVSDB(), slog.New(slog.DiscardHandler))
	harness.OK(t, err)
	t.Cleanup(db.Close)
	o := ovs.Options{Netns: n.Netns(), OVSDB: db, Turns: &plug.Turns{}}
	straight, err := ovs.New(o)
	harness.OK(t, err)
	t.Cleanup(straight.Close)
	bridged, err := hybrid.New(o)
	harness.OK(t, err)
	t.Cleanup(bridged.Close)
	return plug.Set{plug.OVS: straight, plug.OVSHybrid: bridged}
}

// kinds are the API's words for how a port is plugged.
var kinds = map[vpcport.PlugKind]plug.Kind{vpcport.OVS: plug.OVS, vpcport.OVSHybrid: plug.OVSHybrid}

// made creates a port that is bound to a node, and the pod for it.
func made(t *testing.T, p vpcport.Provider, n *openstack.Node, at plug.Plugger, number int, network vpcport.Network, subnet openstack.Subnet, groups ...string) *pod {
	t.Helper()
	uid := name()
	ports, err := p.Create(t.Context(), []vpcport.NewPort{{
		NetworkID: network.ID, Name: "default/" + uid, Device: vpcport.Device("e2e", uid), MAC: vpcport.DerivedMAC("e2e", uid, 0),
		Addresses: []vpcport.NewAddress{{SubnetID: subnet.ID}}, Groups: groups, Host: n.Name,
	}})
	harness.OK(t, err)
	port := ports[0]
	t.Cleanup(func() { harness.OK(t, p.Delete(context.Background(), port.ID)) })
	if port.Binding.Result != vpcport.Bound || port.Status == vpcport.StatusActive {
		t.Fatalf("the new port: %+v", port)
	}
	space := plugtest.Space(t, "pod")
	w := plugtest.Want(kinds[port.Binding.Plug.Kind], fmt.Sprintf("bth%012d", number), port.ID, space, t)
	w.Bridge, w.OVN = port.Binding.Plug.Bridge, port.Binding.Plug.OVN
	w.Interface = plug.Interface{
		MAC: net.HardwareAddr(port.MAC), MTU: network.MTU, Addresses: []netip.Prefix{netip.PrefixFrom(port.Addresses[0].IP, subnet.CIDR.Bits())},
		Gateways: []netip.Addr{subnet.Gateway}, Default: true,
	}
	return &pod{space, port, w, at}
}

func (p *pod) addr() netip.Addr { return p.port.Addresses[0].IP }

// plug plugs the pod's port in and waits until node and Neutron call it active.
func (p *pod) plug(t *testing.T, provider vpcport.Provider) {
	t.Helper()
	ctx := harness.Deadline(t, time.Minute)
	_, err := p.plugger.Plug(ctx, p.want)
	harness.OK(t, err)
	t.Cleanup(func() { harness.OK(t, p.plugger.Unplug(context.Background(), p.want.Ref)) })
	harness.OK(t, p.plugger.Await(ctx, p.want))
	harness.OK(t, p.plugger.Check(ctx, p.want))
	p.becomes(t, provider, vpcport.StatusActive)
	now, err := provider.Get(ctx, p.port.ID)
	harness.OK(t, err)
	if now.Revision <= p.port.Revision {
		t.Errorf("revision %d before it was plugged, %d when active: want it changed by that", p.port.Revision, now.Revision)
	}
}

// becomes waits until the port has a status.
func (p *pod) becomes(t *testing.T, provider vpcport.Provider, want vpcport.Status) {
	t.Helper()
	harness.Eventually(t, time.Minute, fmt.Sprintf("port %s has status %v", p.port.ID, want), func() error {
		now, err := provider.Get(t.Context(), p.port.ID)
		if err == nil && now.Status != want {
			err = fmt.Errorf("it has %v", now.Status)
		}
		return err
	})
}

// ask sends one question from a pod to another.
func (p *pod) ask(t *testing.T, network string, to *pod) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := echo.Ask(ctx, p.Path, network, netip.AddrPortFrom(to.addr(), echo.Port), netip.Addr{}, "hello")
	return err
}

// reaches waits until a pod gets answers of another.
func (p *pod) reaches(t *testing.T, network string, to *pod) {
	t.Helper()
	harness.Eventually(t, time.Minute, fmt.Sprintf("%s reaches %s by %s", p.addr(), to.addr(), network), func() error { return p.ask(t, network, to) })
}

// missesSoon waits until a pod gets no answer from another.
func (p *pod) missesSoon(t *testing.T, network string, to *pod) {
	t.Helper()
	harness.Eventually(t, time.Minute, fmt.Sprintf("%s no longer reaches %s by %s", p.addr(), to.addr(), network), func() error {
		if p.ask(t, network, to) == nil {
			return errors.New("it does")
		}
		return nil
	})
}

// plugs binds and plugs ports on two nodes, which become active and carry the packets that their
// security groups allow.
func plugs(t *testing.T, w *world) {
	t.Helper()
	provider := w.provider(t, nil)
	open, shut := w.group(t, name()), w.group(t, name())
	_, err := w.AddRule(t.Context(), openstack.Rule{Group: open.ID, Direction: "ingress", EtherType: "IPv4"})
	harness.OK(t, err)
	id := w.network(t, name()).ID
	subnet := w.subnet(t, id, "web", netip.MustParsePrefix("192.168.0.0/24"))
	network, err := provider.Network(t.Context(), id)
	harness.OK(t, err)
	here, there := plugger(t, w.nodes[0]), plugger(t, w.nodes[1])
	one := made(t, provider, w.nodes[0], here, 1, network, subnet, open.ID)
	beside := made(t, provider, w.nodes[0], here, 2, network, subnet, open.ID)
	away := made(t, provider, w.nodes[1], there, 3, network, subnet, open.ID)
	closed := made(t, provider, w.nodes[1], there, 4, network, subnet, shut.ID)
	for _, p := range []*pod{one, beside, away, closed} {
		p.plug(t, provider)
		s, err := echo.Serve(p.Path)
		harness.OK(t, err)
		t.Cleanup(func() { _ = s.Close() })
	}
	for _, network := range []string{"tcp", "udp"} {
		one.reaches(t, network, beside)
		one.reaches(t, network, away) // through a tunnel
		away.reaches(t, network, one)
		closed.reaches(t, network, one) // answers pass
	}
	if err := one.ask(t, "tcp", closed); err == nil {
		t.Error("a packet passed that no rule allows")
	}
	rule, err := w.AddRule(t.Context(), openstack.Rule{Group: shut.ID, Direction: "ingress", EtherType: "IPv4", Protocol: "tcp", First: echo.Port, Last: echo.Port})
	harness.OK(t, err)
	one.reaches(t, "tcp", closed)
	if err := one.ask(t, "udp", closed); err == nil {
		t.Error("UDP passed, and a rule allows TCP only")
	}
	harness.OK(t, w.Delete(t.Context(), "security-group-rule", rule.ID))
	one.missesSoon(t, "tcp", closed)
	harness.OK(t, beside.plugger.Unplug(t.Context(), beside.want.Ref))
	beside.becomes(t, provider, vpcport.StatusDown)
	if err := one.ask(t, "tcp", beside); err == nil {
		t.Error("a port that is unplugged answers")
	}
	// A port that is deleted while plugged carries nothing, and the node removes its row.
	harness.OK(t, provider.Delete(t.Context(), away.port.ID))
	one.missesSoon(t, "tcp", away)
	list, err := away.plugger.List(t.Context())
	harness.OK(t, err)
	if !slices.ContainsFunc(list, func(f plug.Found) bool { return f.PortID == away.port.ID }) {
		t.Errorf("the port that was deleted is not among those plugged: %+v", list)
	}
}
