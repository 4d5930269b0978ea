package daemon

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/rpc"
)

// newPortNode is a node whose pods may have NICs.
func newPortNode(t *testing.T, addrs ...string) *node {
	n := newNode(t, addrs...)
	n.board = newSwitchboard()
	return n
}

// testNIC is a port that is bound to the node.
func testNIC(ifName, port string) attachment.NIC {
	return attachment.NIC{
		Object: "nic-" + port, UID: "uid-" + port, Port: port, IfName: ifName, MAC: []byte{0xfa, 0x16, 0x3e, 0, 0, 1}, MTU: 1442,
		Addresses: []attachment.NICAddress{{CIDR: netip.MustParsePrefix("192.168.0.12/24"), Gateway: netip.MustParseAddr("192.168.0.1")}},
		Plug:      attachment.Plug{Type: "OVS", Bridge: "br-int"},
	}
}

func TestPodWithAFurtherNIC(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.start()
	r.nics.bind("pod-a", testNIC("eth1", "p-1"), testNIC("eth2", "p-2"))
	reply := mustAdd(t, r, "a", n.newNetns("a"))
	if got := reply.GetAddresses(); len(got) != 1 || got[0] != "10.0.0.5/32" || reply.GetSandbox().GetName() != "eth0" {
		t.Errorf("the first interface is %v", reply)
	}
	link := func(name, port string) *rpc.Link {
		return &rpc.Link{
			Host:      &rpc.Interface{Name: "tap" + port, Mac: "02:00:00:00:01:01"},
			Sandbox:   &rpc.Interface{Name: name, Mac: "fa:16:3e:00:00:01"},
			Addresses: []*rpc.Address{{Cidr: "192.168.0.12/24", Gateway: "192.168.0.1"}}, Mtu: 1442,
		}
	}
	if diff := cmp.Diff([]*rpc.Link{link("eth1", "p-1"), link("eth2", "p-2")}, reply.GetLinks(), protocmp.Transform()); diff != "" {
		t.Errorf("further interfaces (-want +got):\n%s", diff)
	}
	n.board.want(t, "p-1", "p-2")
	n.wantKernel(t, 1, 1)
	if again := mustAdd(t, r, "a", "/run/netns/a"); !cmp.Equal(again, reply, protocmp.Transform()) {
		t.Errorf("again %v, first %v", again, reply)
	}
	mustDel(t, r, "a")
	n.board.want(t)
	if _, cools := r.Store.Cooling(n.addrs[0]); !cools {
		t.Error("the address does not cool")
	}
	mustDel(t, r, "a")
}

func TestPodOfNICsAlone(t *testing.T) {
	n := newPortNode(t)
	r := n.start()
	r.source.Nothing = true
	first := testNIC("eth0", "p-0")
	first.DefaultRoute = true
	first.Routes = []attachment.NICRoute{{Destination: netip.MustParsePrefix("172.16.0.0/12")}}
	r.nics.bind("pod-a", testNIC("eth1", "p-1"), first)
	req := addOf("a", n.newNetns("a"))
	reply, err := r.client.Add(within(t), req, grpc.WaitForReady(true))
	must(t, err)
	want := &rpc.AddReply{
		Host:      &rpc.Interface{Name: "tapp-0", Mac: "02:00:00:00:01:01"},
		Sandbox:   &rpc.Interface{Name: "eth0", Mac: "fa:16:3e:00:00:01"},
		Addresses: []string{"192.168.0.12/24"}, Mtu: 1442,
		Routes: []*rpc.Route{{Dst: "0.0.0.0/0", Gateway: "192.168.0.1"}, {Dst: "172.16.0.0/12"}},
		Links: []*rpc.Link{{
			Host:      &rpc.Interface{Name: "tapp-1", Mac: "02:00:00:00:01:01"},
			Sandbox:   &rpc.Interface{Name: "eth1", Mac: "fa:16:3e:00:00:01"},
			Addresses: []*rpc.Address{{Cidr: "192.168.0.12/24", Gateway: "192.168.0.1"}}, Mtu: 1442,
		}},
	}
	if diff := cmp.Diff(want, reply, protocmp.Transform()); diff != "" {
		t.Errorf("reply (-want +got):\n%s", diff)
	}
	n.board.want(t, "p-0", "p-1")
	n.wantKernel(t, 0, 0)
	r = n.restart(r)
	n.board.want(t, "p-0", "p-1")
	mustDel(t, r, "a")
	n.board.want(t)
	if left := r.Store.Records(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// CHECK compares what is plugged, and the addresses that the runtime remembers of each
// interface that is ours.
func TestCheckWithNICs(t *testing.T) {
	n := newPortNode(t, "10.0.0.5")
	r := n.start()
	r.nics.bind("pod-a", testNIC("eth1", "p-1"))
	mustAdd(t, r, "a", n.newNetns("a"))
	check := func(ifName, cidr string) error {
		_, err := r.client.Check(within(t), &rpc.CheckRequest{
			Attachment: addOf("a", "").GetAttachment(), Netns: "/run/netns/a", Addresses: []string{"10.0.0.5/32"},
			Links: []*rpc.Link{{Sandbox: &rpc.Interface{Name: ifName}, Addresses: []*rpc.Address{{Cidr: cidr}}}},
		})
		return err
	}
	must(t, check("eth1", "192.168.0.12/24"))
	must(t, check("net1", "192.168.0.13/24")) // another plugin's
	if f := wantFailure(t, check("eth1", "192.168.0.13/24"), CodeMismatch); !strings.Contains(f.GetMessage(), "interface eth1 of attachment berth/a/eth0 holds [192.168.0.12], not 192.168.0.13") {
		t.Errorf("message %q", f.GetMessage())
	}
	wantFailure(t, check("eth1", "x"), types.ErrInvalidNetworkConfig)
	n.board.lose()
	if f := wantFailure(t, check("eth1", "192.168.0.12/24"), CodeMismatch); !strings.Contains(f.GetDetails(), "NIC eth1, port p-1: is not plugged") {
		t.Errorf("details %q", f.GetDetails())
	}
	// The same ADD puts it back.
	mustAdd(t, r, "a", "/run/netns/a")
	must(t, check("eth1", "192.168.0.12/24"))
}
