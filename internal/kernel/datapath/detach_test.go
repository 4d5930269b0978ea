package datapath

import (
	"testing"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

func TestDetachPod(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA, podA6), v.pod(podB)
	b.serveTCP(":80")
	a.serveTCP(":80")
	a.seenAs(podB+":80", podA)
	v.detach(a)
	v.has(2, 1)
	a.cannotReach("", podB+":80")
	a.cannotReach("", nodeAddr+":80")
	v.host.cannotReach("", podA+":80")

	// The address may be another pod's by now: it stays that pod's.
	c := v.pod(podA)
	for range 2 {
		v.detach(a)
	}
	c.seenAs(podB+":80", podA)
	if err := v.node.ReapLinks(ctx, []string{a.want.HostIfName, HostLinkName("never", "was", "there")}); err != nil {
		t.Fatal(err)
	}
	v.has(2, 2)
	if _, err := a.nl.LinkByName("eth0"); err == nil {
		t.Error("the pod's end is still there")
	}
	if err := v.node.DetachPod(ctx, a.want.HostIfName, a.want.Addrs()); err != nil {
		t.Errorf("DetachPod of a link that is gone: %v", err)
	}
	if err := v.node.ReapLinks(ctx, []string{a.want.HostIfName}); err != nil {
		t.Errorf("ReapLinks of a link that is gone: %v", err)
	}
}

func TestReapLinksLeavesOthersAlone(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA)
	if err := v.node.ReapLinks(ctx, []string{"eth1"}); err == nil {
		t.Error("ReapLinks took a link that is not Berth's")
	}
	v.reap(a)
	v.has(1, 1) // a is live: it was never detached
	v.detach(a)
	v.add(a) // the runtime tries again before the removal
	v.reap(a)
	if err := v.node.CheckPod(ctx, a.want); err != nil {
		t.Errorf("ReapLinks removed a pod that was added again: %v", err)
	}
	if v.host.link("eth1") == nil || v.host.link("eth0") == nil {
		t.Error("an ENI is gone")
	}
}

func TestDetachPodOfAGoneSandbox(t *testing.T) {
	v := newVPC(t)
	p := v.pod(podA)
	p.must(p.nl.LinkDel(rtnl.LinkRef(p.links.PodIndex)))
	v.detach(p)
	v.has(0, 0)
}
