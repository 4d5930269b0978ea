package nsveth

import (
	"net"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/vpcport"
	provider "github.com/berthnet/berth/internal/vpcport/alcor"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
)

// vpc is a VPC in an Alcor cloud, with the agent of a node and a provider.
type vpc struct {
	t        *testing.T
	cloud    *alcorfake.Cloud
	node     *podif.Namespace
	agent    *alcorfake.Agent
	network  alcorfake.Network
	subnet   alcorfake.Subnet
	six      alcorfake.Subnet
	provider *provider.Provider
	prefix   string
}

func newVPC(t *testing.T, prefix string) *vpc {
	t.Helper()
	v := &vpc{t: t, cloud: alcorfake.New(alcorfake.Options{}), node: plugtest.Space(t, "node"), prefix: prefix}
	v.network = v.cloud.AddNetwork(alcorfake.Network{ID: uuid.NewString(), Name: "blue", MTU: 1400})
	v.subnet = v.cloud.AddSubnet(alcorfake.Subnet{Network: v.network.ID, CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1")})
	v.six = v.cloud.AddSubnet(alcorfake.Subnet{Network: v.network.ID, CIDR: netip.MustParsePrefix("2001:db8:1::/64"), Gateway: netip.MustParseAddr("2001:db8:1::1")})
	v.cloud.AddHost("node-a", alcorfake.Host{})
	server := httptest.NewServer(v.cloud)
	t.Cleanup(server.Close)
	var err error
	v.provider, err = provider.Open(provider.Settings{Endpoint: server.URL, Project: v.network.Project, NetnsPrefix: prefix})
	plugtest.Must(t, err)
	v.start()
	t.Cleanup(func() { plugtest.Must(t, v.agent.Close()) })
	return v
}

func (v *vpc) start() {
	v.agent = v.cloud.StartAgent(alcorfake.AgentOptions{Host: "node-a", Netns: v.node.Path, Prefix: v.prefix})
}

// port creates a port bound to the node, and returns it with its Want.
func (v *vpc) port(uid, attachment string, pod *podif.Namespace) (vpcport.Port, plug.Want) {
	v.t.Helper()
	made, err := v.provider.Create(v.t.Context(), []vpcport.NewPort{{
		NetworkID: v.network.ID, Device: vpcport.Device("blue", uid), MAC: vpcport.DerivedMAC("blue", uid, 0),
		Addresses: []vpcport.NewAddress{{SubnetID: v.subnet.ID}, {SubnetID: v.six.ID}},
	}})
	plugtest.Must(v.t, err)
	p := v.bind(made[0].ID, "node-a")
	if p.Binding.Result != vpcport.Bound || p.Binding.Plug.Kind != vpcport.Netns {
		v.t.Fatalf("the binding is %+v", p.Binding)
	}
	w := plug.Want{
		Ref: plug.Ref{
			Attachment: attachment, PortID: p.ID, Kind: plug.Netns, VPCNetns: p.Binding.Plug.Netns,
			Pod: plug.Pod{Netns: pod.Path, NetnsID: plugtest.ID(v.t, pod), IfName: "eth0"},
		},
		Interface: plug.Interface{MAC: net.HardwareAddr(p.MAC), MTU: v.network.MTU, Default: true, Gateways: []netip.Addr{v.subnet.Gateway, v.six.Gateway}},
	}
	for _, a := range p.Addresses {
		w.Interface.Addresses = append(w.Interface.Addresses, netip.PrefixFrom(a.IP, map[string]int{v.subnet.ID: 24, v.six.ID: 64}[a.SubnetID]))
	}
	return p, w
}

// bind binds a port to a host; "": to none.
func (v *vpc) bind(id, host string) vpcport.Port {
	v.t.Helper()
	c := vpcport.Change{Host: &host}
	if host == "" {
		c.Device, c.Owner = &host, &host
	}
	p, err := v.provider.Update(v.t.Context(), id, 0, c)
	plugtest.Must(v.t, err)
	return p
}

// active waits until the agent reports a port as active.
func (v *vpc) active(id string) {
	v.t.Helper()
	plugtest.Within(v.t, "port "+id+" is active", func() bool {
		p, err := v.provider.Get(v.t.Context(), id)
		return err == nil && p.Status == vpcport.StatusActive
	})
}

// Two pods of a VPC on a node communicate by ports that Alcor's agent has prepared. Unplug moves a
// link back under its old name, and deleting the port in Alcor removes it.
func TestPacketsByAlcorsAgent(t *testing.T) {
	for _, prefix := range []string{"vpc-ns", "vpc-ns-"} {
		t.Run(prefix, func(t *testing.T) {
			v := newVPC(t, prefix)
			p, ctx := newPlugger(t, Options{Wait: plugWait}), plugtest.Bounded(t)
			before := plugtest.Describe(t, v.node)
			one, two := plugtest.Space(t, "one"), plugtest.Space(t, "two")
			portOne, wantOne := v.port("u-1", plugtest.One, one)
			portTwo, wantTwo := v.port("u-2", plugtest.Two, two)
			for _, w := range []plug.Want{wantOne, wantTwo} {
				plugtest.Plugged(t, p, w)
				plugtest.Must(t, p.Await(ctx, w))
				plugtest.Must(t, p.Check(ctx, w))
			}
			v.active(portOne.ID)
			v.active(portTwo.ID)
			for _, a := range portTwo.Addresses {
				plugtest.Transfer(t, one.Path, two.Path, a.IP)
			}
			plugtest.Must(t, p.Unplug(ctx, wantOne.Ref))
			vpcNetns, err := podif.Open(ns.Path(wantOne.VPCNetns))
			plugtest.Must(t, err)
			defer vpcNetns.Close()
			if got := plugtest.Links(t, vpcNetns); !slices.Equal(got, []string{"veth" + portOne.ID[:11]}) {
				t.Errorf("in the VPC's namespace are %v", got)
			}
			if got := plugtest.Links(t, one); len(got) != 0 {
				t.Errorf("left in the pod: %v", got)
			}
			plugtest.Must(t, v.provider.Delete(ctx, portOne.ID))
			plugtest.Must(t, v.provider.Delete(ctx, portTwo.ID)) // while it is plugged
			plugtest.Within(t, "the links go with the ports", func() bool {
				return len(plugtest.Links(t, vpcNetns)) == 0 && len(plugtest.Links(t, two)) == 0 && !strings.Contains(plugtest.Describe(t, v.node), "alcp")
			})
			plugtest.Must(t, p.Unplug(ctx, wantTwo.Ref))
			plugtest.Must(t, v.agent.Close())
			if after := plugtest.Describe(t, v.node); after != before {
				t.Errorf("left on the node:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

// The agent's link exists exactly while the port is bound to the node: after the port moves to
// another node and back, after the agent restarts, and after the port is unbound.
func TestAlcorsAgentFollowsPorts(t *testing.T) {
	v := newVPC(t, "vpc-ns")
	v.cloud.AddHost("node-b", alcorfake.Host{})
	pod := plugtest.Space(t, "pod")
	port, w := v.port("u-1", plugtest.One, pod)
	p, ctx := newPlugger(t, Options{Wait: plugWait}), plugtest.Bounded(t)
	plugtest.Plugged(t, p, w)
	v.active(port.ID)
	gone, _ := v.port("u-2", plugtest.Two, pod)
	v.active(gone.ID)
	v.agent.Crash()
	v.cloud.Remove(gone.ID)
	v.start()
	plugtest.Within(t, "what went meanwhile goes from the node", func() bool {
		return !strings.Contains(plugtest.Describe(t, v.node), "alcp"+gone.ID[:11])
	})
	v.bind(port.ID, "node-a") // the agent programs it again
	v.active(port.ID)
	plugtest.Must(t, p.Check(ctx, w)) // the link is still in the pod
	v.bind(port.ID, "node-b")
	plugtest.Within(t, "the link leaves the pod with the port", func() bool { return len(plugtest.Links(t, pod)) == 0 })
	plugtest.Must(t, p.Unplug(ctx, w.Ref))
	v.bind(port.ID, "node-a")
	plugtest.Plugged(t, p, w)
	plugtest.Must(t, p.Unplug(ctx, w.Ref))
	v.bind(port.ID, "")
	plugtest.Within(t, "a port that nobody has goes from the node", func() bool {
		return !strings.Contains(plugtest.Describe(t, v.node), "alcp")
	})
}
