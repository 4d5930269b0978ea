package nics

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hybrid"
	"github.com/berthnet/berth/internal/kernel/plug/ovs"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/test/harness"
)

// From a PodNIC to packets and back, by the real Open vSwitch, and by OVN where it is
// installed: two pods talk, one goes, and its PodNIC says so.
func TestPackets(t *testing.T) {
	for name, open := range map[string]func(*testing.T, *podif.Namespace) (*plugtest.Server, *plugtest.OVN){
		"OpenVSwitch": func(t *testing.T, node *podif.Namespace) (*plugtest.Server, *plugtest.OVN) {
			return plugtest.NewOpenVSwitch(t, node), nil
		},
		"OVN": func(t *testing.T, node *podif.Namespace) (*plugtest.Server, *plugtest.OVN) {
			ovn := plugtest.NewOVN(t, node)
			return ovn.Server, ovn
		},
	} {
		for _, kind := range []v1alpha1.PlugType{v1alpha1.PlugOVS, v1alpha1.PlugOVSHybrid} {
			t.Run(name+"/"+string(kind), func(t *testing.T) {
				node := plugtest.Space(t, "node")
				server, ovn := open(t, node)
				packets(t, kind, node, server, ovn)
			})
		}
	}
}

func packets(t *testing.T, kind v1alpha1.PlugType, node *podif.Namespace, server *plugtest.Server, ovn *plugtest.OVN) {
	m := newMachine(t)
	db := server.Client()
	options := ovs.Options{Netns: node.Path, OVSDB: db, Turns: &plug.Turns{}}
	straight, err := ovs.New(options)
	harness.OK(t, err)
	defer straight.Close()
	filtered, err := hybrid.New(options)
	harness.OK(t, err)
	defer filtered.Close()
	m.tune = func(c *Config) {
		c.Plugger, c.Switch = plug.Set{plug.OVS: straight, plug.OVSHybrid: filtered}, db
	}
	m.start()
	defer m.stop()
	before := plugtest.Describe(t, node)

	var pods []*podif.Namespace
	var recs []attachment.Record
	for i := 1; i <= 2; i++ {
		pod := plugtest.Space(t, "pod")
		o := podNIC(i, 0, v1alpha1.PhaseActive)
		o.Status.Plug.Type, o.Status.Plug.OVN = kind, ovn != nil
		m.make(o)
		nics, err := m.begin(wish(i, nil))()
		harness.OK(t, err)
		rec := recordOf(i, nics...)
		id := plugtest.ID(t, pod)
		rec.Netns = attachment.Netns{Path: pod.Path, Dev: id.Dev, Inode: id.Inode}
		m.record(rec)
		if ovn != nil { // as the port is there before it is plugged
			ovn.AddPort(want(rec, nics[0]))
		}
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
	for i, name := range []string{"pod1-eth0", "pod2-eth0"} {
		got := m.says(name, v1alpha1.NodePlugged)
		if got.HostInterface != recs[i].NICs[0].HostLink || plugtest.Link(t, node, got.HostInterface) == nil {
			t.Errorf("%s: the link %q is not on the node", name, got.HostInterface)
		}
	}
	// Another takes the row: it is noticed, and set right.
	for len(m.Drifted()) > 0 {
		<-m.Drifted()
	}
	harness.OK(t, m.Unplug(t.Context(), recs[0], recs[0].NICs[0]))
	<-m.Drifted()
	if err := m.Check(t.Context(), recs[0], recs[0].NICs[0]); err == nil {
		t.Error("what is not plugged passes the check")
	}
	_, err = m.Plug(t.Context(), recs[0], recs[0].NICs[0])
	harness.OK(t, err)
	harness.OK(t, m.Await(plugtest.Bounded(t), recs[0]))
	transfer(t, pods[0], pods[1], recs[1].NICs[0].Addresses[0].CIDR.Addr())

	for _, rec := range recs {
		m.del(rec)
	}
	m.says("pod1-eth0", v1alpha1.NodeUnplugged)
	m.says("pod2-eth0", v1alpha1.NodeUnplugged)
	if got := server.Interfaces(); len(got) != 0 {
		t.Errorf("left in OVSDB: %v", got)
	}
	if after := plugtest.Describe(t, node); after != before {
		t.Errorf("left on the node:\n%s\nbefore:\n%s", after, before)
	}
	for _, pod := range pods {
		if links := plugtest.Links(t, pod); slices.Contains(links, "eth0") {
			t.Errorf("left in a pod: %v", links)
		}
	}
}

// transfer sends more than fits into a packet by TCP.
func transfer(t *testing.T, from, to *podif.Namespace, addr netip.Addr) {
	t.Helper()
	l, err := ns.Listen(to.Path, netip.AddrPortFrom(addr, 0))
	harness.OK(t, err)
	defer l.Close()
	text := strings.Repeat("0123456789", 2_000)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, text)
		_ = c.Close()
	}()
	ctx := plugtest.Bounded(t)
	c, err := ns.Dial(ctx, from.Path, "tcp", l.Addr().(*net.TCPAddr).AddrPort(), netip.Addr{})
	harness.OK(t, err)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	got, err := io.ReadAll(c)
	if err != nil || string(got) != text {
		t.Errorf("from %s: %d bytes, %v", addr, len(got), err)
	}
}
