package datapath

import (
	"fmt"
	"net/netip"
	"testing"
)

// The node's addresses are those of all links, but what Berth gives to links and what no pod can have.
// A pod whose address the node has is cut off until it is removed there.
func TestNodeAddresses(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA, podA6)
	v.host.serveTCP(":81")
	a.serveTCP(":80")
	before, err := v.node.NodeAddresses(ctx)
	v.ok(err)
	for _, has := range before {
		if has.Link != "eth0" { // the primary's is the operating system's
			t.Errorf("the node has %s", has)
		}
		if !has.Own {
			t.Errorf("%s could be removed", has)
		}
	}
	for _, command := range []string{
		"ip address add " + podA + "/24 dev eth1 noprefixroute",
		"ip address add " + podA6 + "/64 dev eth1 nodad noprefixroute",
		"ip link add spare type veth peer name spare1",
		"ip address add " + podB + "/32 dev spare",
		"ip address add 127.0.0.9/8 dev lo",
		"ip link add kube-ipvs0 type veth peer name ipvs1",
		"ip address add 10.96.0.1/32 dev kube-ipvs0",
		"ip address add 198.51.100.7/32 dev eth0", // of no ENI
	} {
		v.host.run(command)
	}
	found, err := v.node.NodeAddresses(ctx)
	v.ok(err)
	want := fmt.Sprintf("[%s on spare %s on eth1 %s on eth1]", podB, podA, podA6)
	var added []NodeAddress
	for _, has := range found {
		if has.Link != "eth0" {
			added = append(added, has)
			if has.Own {
				t.Errorf("%s could not be removed", has)
			}
		}
	}
	if fmt.Sprint(added) != want {
		t.Errorf("the node has %v, want %s", added, want)
	}
	v.router.cannotReach("", podA+":80")
	for range 2 { // the second finds nothing
		v.ok(v.node.RemoveNodeAddress(ctx, netip.MustParseAddr(podA)))
		v.ok(v.node.RemoveNodeAddress(ctx, netip.MustParseAddr(podA6)))
	}
	v.ok(v.node.RemoveNodeAddress(ctx, netip.MustParseAddr("198.51.100.7")))
	if now, err := v.node.NodeAddresses(ctx); err != nil || len(now) != len(before)+2 {
		t.Errorf("the node has %v, %v, want two more than before", now, err)
	}
	v.host.seenAs(podA+":80", nodeAddr)
	v.host.seenAs("["+podA6+"]:80", nodeAddr6)
}
