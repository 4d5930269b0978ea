package nics

import (
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/nsveth"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/alcor"
	"github.com/berthnet/berth/lab/cloud/alcorfake"
	"github.com/berthnet/berth/test/harness"
)

// From a PodNIC to packets and back by ports of Alcor, on a node without Open vSwitch: its
// agent has the links ready, two pods talk by them, also before the operator hears that the
// ports are active, and they go back to the agent with the pods.
func TestPacketsOfAlcor(t *testing.T) {
	const host = "host-1"
	cloud := alcorfake.New(alcorfake.Options{})
	network := cloud.AddNetwork(alcorfake.Network{ID: uuid.NewString(), Name: "blue"})
	subnet := cloud.AddSubnet(alcorfake.Subnet{Network: network.ID, CIDR: netip.MustParsePrefix("192.168.0.0/24"), Gateway: netip.MustParseAddr("192.168.0.1")})
	cloud.AddHost(host, alcorfake.Host{})
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	provider, err := alcor.Open(alcor.Settings{Endpoint: server.URL, Project: network.Project})
	harness.OK(t, err)
	node := plugtest.Space(t, "node")
	before := plugtest.Describe(t, node)
	agent := cloud.StartAgent(alcorfake.AgentOptions{Host: host, Netns: node.Path})
	t.Cleanup(func() { harness.OK(t, agent.Close()) })

	m := newMachine(t)
	plugger, err := nsveth.New(nsveth.Options{Wait: nsveth.MaxWait})
	harness.OK(t, err)
	m.tune = func(c *Config) { c.Plugger, c.Switch = plug.Set{plug.Netns: plugger}, nil }
	m.start()
	defer m.stop()

	var pods []*podif.Namespace
	var recs []attachment.Record
	for i := 1; i <= 2; i++ {
		pod := plugtest.Space(t, "pod")
		made, err := provider.Create(t.Context(), []vpcport.NewPort{{
			NetworkID: network.ID, Device: vpcport.Device("blue", fmt.Sprint(i)), Host: host, Addresses: []vpcport.NewAddress{{SubnetID: subnet.ID}},
		}})
		harness.OK(t, err)
		p := made[0]
		o := podNIC(i, 0, v1alpha1.PhaseBound)
		o.Status.PortID, o.Status.MAC, o.Status.MTU = p.ID, p.MAC.String(), int32(network.MTU)
		o.Status.Addresses[0].CIDR, o.Status.Addresses[0].Gateway = p.Addresses[0].IP.String()+"/24", "192.168.0.1"
		o.Status.Plug = &v1alpha1.PortPlug{Type: v1alpha1.PlugNetns, Netns: p.Binding.Plug.Netns}
		m.make(o)
		nics, err := m.begin(wish(i, nil))()
		harness.OK(t, err)
		rec := recordOf(i, nics...)
		id := plugtest.ID(t, pod)
		rec.Netns = attachment.Netns{Path: pod.Path, Dev: id.Dev, Inode: id.Inode}
		m.record(rec)
		ctx := plugtest.Bounded(t)
		rec.NICs[0], err = m.Plug(ctx, rec, nics[0])
		harness.OK(t, err)
		harness.OK(t, m.Await(ctx, rec))
		harness.OK(t, m.Check(ctx, rec, rec.NICs[0]))
		rec.State = attachment.Ready
		m.record(rec)
		m.Plugged(rec)
		pods, recs = append(pods, pod), append(recs, rec)
	}
	transfer(t, pods[0], pods[1], recs[1].NICs[0].Addresses[0].CIDR.Addr())
	m.says("pod1-eth0", v1alpha1.NodePlugged)
	m.says("pod2-eth0", v1alpha1.NodePlugged)

	var links []string
	for _, rec := range recs {
		links = append(links, "veth"+rec.NICs[0].Port[:plug.PrefixLen])
		m.del(rec)
	}
	m.says("pod1-eth0", v1alpha1.NodeUnplugged)
	m.says("pod2-eth0", v1alpha1.NodeUnplugged)
	vpc, err := podif.Open(ns.Path("vpc-ns" + network.ID))
	harness.OK(t, err)
	defer vpc.Close()
	slices.Sort(links)
	if got := slices.Sorted(slices.Values(plugtest.Links(t, vpc))); !slices.Equal(got, links) {
		t.Errorf("in the VPC's namespace are %v, want %v", got, links)
	}
	for _, pod := range pods {
		if links := plugtest.Links(t, pod); len(links) != 0 {
			t.Errorf("left in a pod: %v", links)
		}
	}
	for _, rec := range recs {
		harness.OK(t, provider.Delete(t.Context(), rec.NICs[0].Port))
	}
	plugtest.Within(t, "the agent's links go with the ports", func() bool { return !strings.Contains(plugtest.Describe(t, node), "alcp") })
	harness.OK(t, agent.Close())
	if after := plugtest.Describe(t, node); after != before {
		t.Errorf("left on the node:\n%s\nbefore:\n%s", after, before)
	}
}
