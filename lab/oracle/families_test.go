package oracle

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
)

// The oracle compares the pods' addresses of each family with those of the node's ENIs.
func TestCheckFamilies(t *testing.T) {
	addr := netip.MustParseAddr
	own := []netip.Addr{addr("10.0.0.5"), addr("2001:db8:1::5")}
	enis := []vpc.ENI{{Primary: own[0], IPv6: own[1:], Attachment: &vpc.Attachment{}}}
	for name, tc := range map[string]struct {
		addrs []netip.Addr
		want  string
	}{
		"one family":    {[]netip.Addr{addr("10.0.0.9")}, "has 0 addresses of IPv6, want 1"},
		"two of one":    {[]netip.Addr{addr("10.0.0.9"), addr("2001:db8:1::1"), addr("2001:db8:1::2")}, "has 2 addresses of IPv6, want 1"},
		"of two ENIs":   {[]netip.Addr{addr("10.0.0.9"), addr("2001:db8:1::1")}, "which are not on one ENI of this node"},
		"of the node's": {own, ""},
	} {
		f := findings{node: &node.Node{}, mode: lab.NodeMode, families: ipfamily.Dual, enis: enis}
		f.checkFamilies(&node.Pod{Name: "x"}, tc.addrs)
		var said []string
		for _, err := range f.errs {
			said = append(said, err.Error())
		}
		if text := strings.Join(said, "\n"); tc.want == "" && text != "" || !strings.Contains(text, tc.want) {
			t.Errorf("%s: reported %q, want %q", name, text, tc.want)
		}
	}
	f := findings{node: &node.Node{}, mode: lab.NodeMode, families: ipfamily.Dual, enis: enis}
	for _, a := range own {
		if f.owns(a) {
			t.Errorf("%s, the node's own address, counts as a pod address", a)
		}
	}
}

// A detached ENI is leaked unless it is a branch.
func TestCheckENIs(t *testing.T) {
	books := vpc.Snapshot{ENIs: []vpc.ENI{{ID: "eni-branch", Trunk: &vpc.Association{TrunkID: "eni-trunk"}}, {ID: "eni-loose"}}}
	errs := checkENIs(books)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "eni-loose") {
		t.Errorf("got %v", errs)
	}
}

// The oracle reports inconsistencies between NodeNetworks, and between one and its node.
func TestCheckNetworks(t *testing.T) {
	var objects []v1alpha1.NodeNetwork
	var nodes []*node.Node
	for _, name := range []string{"node-1", "node-2", "gone"} {
		o := v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-" + name}}
		o.Name = name
		if name != "gone" {
			nodes = append(nodes, &node.Node{Options: node.Options{Name: name, InstanceID: "i-" + name}})
			o.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{"10.0.0.77": {Resource: "eni-1"}}
		}
		objects = append(objects, o)
	}
	objects[1].Spec.IPAM.Releasing = []string{"10.0.0.78"}
	networks, errs := compareNetworks(objects, nodes, func(string) bool { return false })
	f := findings{node: nodes[1], network: networks["node-2"]}
	f.checkNetwork(introspect.Document{}, map[netip.Addr]*node.Pod{netip.MustParseAddr("10.0.0.5"): {Name: "p"}})
	all := errors.Join(append(errs, f.errs...)...).Error()
	for _, want := range []string{
		"10.0.0.77 is available in two NodeNetworks: node-1 and node-2",
		"NodeNetwork gone is left over",
		"10.0.0.77 is available, but EC2 has not assigned it",
		"10.0.0.78 is releasing but not available",
		"10.0.0.5 is in use or cooling, but not in status.ipam.used",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no report contains %q:\n%s", want, all)
		}
	}
}
