package daemon

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/rpc"
)

// newChainedNode is a node whose pods' interfaces are another network's.
func newChainedNode(t *testing.T) *node {
	n := newEgressNode(t)
	n.chained = true
	return n
}

func chainedAdd(container, netns string, addrs ...string) *rpc.AddRequest {
	req := addOf(container, netns)
	req.Previous = &rpc.Previous{Addresses: addrs}
	return req
}

// A pod of another network gets egress and nothing else: its addresses are that network's.
func TestChainedPod(t *testing.T) {
	n := newChainedNode(t)
	r := n.restart(nil)
	r.egress.says("pod-a", testEgress("nat"))
	ns := n.newNetns("a")
	add := func(addrs ...string) *rpc.AddReply {
		t.Helper()
		reply, err := r.client.Add(within(t), chainedAdd("a", ns, addrs...))
		must(t, err)
		return reply
	}
	if reply := add("10.4.0.7/24", "2001:db8:4::7/64"); !reply.GetChained() || reply.GetSandbox() != nil || len(reply.GetAddresses()) != 2 {
		t.Errorf("the reply is %v", reply)
	}
	n.tunnels.want(t, "internet/nat")
	n.wantKernel(t, 0, 0)
	if told := n.tunnels.told[keyFor("a")]; len(told.addrs) != 2 || told.addrs[0].String() != "10.4.0.7" {
		t.Errorf("the operator heard %+v", told)
	}
	check := checkOf("a")
	check.Addresses = []string{"10.4.0.7/24", "2001:db8:4::7/64"}
	_, err := r.client.Check(within(t), check)
	must(t, err)
	check.Addresses = []string{"10.4.0.8/24"}
	_, err = r.client.Check(within(t), check)
	wantFailure(t, err, cnierror.CodeMismatch)

	// Another daemon takes it up, the same ADD again sets up what somebody removed, and one
	// with other addresses follows them.
	r = n.restart(r)
	r.egress.says("pod-a", testEgress("nat"))
	n.tunnels.lose()
	add("10.4.0.7/24", "2001:db8:4::7/64")
	n.tunnels.want(t, "internet/nat")
	add("10.4.0.9/24")
	n.tunnels.want(t, "internet/nat")
	if told := n.tunnels.told[keyFor("a")]; len(told.addrs) != 1 || told.addrs[0].String() != "10.4.0.9" {
		t.Errorf("the operator heard %+v", told)
	}
	if view := r.inspector.podView(within(t), "default", "pod-a").Attachments; len(view) != 1 || view[0].Address.String() != "10.4.0.9" || view[0].Fault != "" || !view[0].Checked {
		t.Errorf("/ip-manager/pod has %+v", view)
	}
	// It becomes a client, and stops being one, while it runs.
	r.egress.says("pod-a", nil)
	n.tunnels.settles(t)
	r.egress.says("pod-a", testEgress("partner"))
	n.tunnels.settles(t, "internet/partner")

	mustDel(t, r, "a")
	mustDel(t, r, "a")
	n.tunnels.want(t)
	if len(r.Store.CoolingRecords()) != 0 {
		t.Error("another network's address cools")
	}
	add("10.4.0.7/24")
	_, err = r.client.GC(within(t), &rpc.GCRequest{Network: "berth"})
	must(t, err)
	if len(r.Store.Records()) != 0 {
		t.Error("GC left it")
	}
}

// An ADD of the wrong kind is refused, and leaves nothing.
func TestADDForAnotherDaemon(t *testing.T) {
	chained := newChainedNode(t)
	r := chained.restart(nil)
	if f := r.refused(t, addOf("a", chained.newNetns("a")), types.ErrInvalidNetworkConfig); !strings.Contains(f.GetMessage(), "at the end of another network's list") {
		t.Errorf("the ADD says %v", f)
	}
	for says, addrs := range map[string][]string{"has no address of interface eth0": nil, `"x" is not a CIDR`: {"x"}, `"fe80::1%eth0/64" is not a CIDR`: {"fe80::1%eth0/64"}} {
		if f := r.refused(t, chainedAdd("a", "/run/netns/a", addrs...), types.ErrInvalidNetworkConfig); !strings.Contains(f.GetMessage(), says) {
			t.Errorf("the ADD says %v, want %q", f, says)
		}
	}
	own := newEgressNode(t, "10.0.0.5")
	r = own.restart(nil)
	if f := r.refused(t, chainedAdd("a", own.newNetns("a"), "10.4.0.7/24"), types.ErrInvalidNetworkConfig); !strings.Contains(f.GetMessage(), "run berthd with --ipam=none") {
		t.Errorf("the ADD says %v", f)
	}
	if len(r.Store.Records()) != 0 || own.tunnels.count("Apply") != 0 {
		t.Error("the ADD left something")
	}
}
