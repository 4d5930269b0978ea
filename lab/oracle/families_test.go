package oracle

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
)

// Addresses of each family in pods are compared with those of the node's ENIs.
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
			t.Errorf("%s: said %q, want %q", name, text, tc.want)
		}
	}
	f := findings{node: &node.Node{}, mode: lab.NodeMode, families: ipfamily.Dual, enis: enis}
	for _, a := range own {
		if f.owns(a) {
			t.Errorf("a pod may have the node's own %s", a)
		}
	}
}

// An ENI that is attached to nothing is leaked, unless it is a branch.
func TestCheckENIs(t *testing.T) {
	books := vpc.Books{ENIs: []vpc.ENI{{ID: "eni-branch", Trunk: &vpc.Association{TrunkID: "eni-trunk"}}, {ID: "eni-loose"}}}
	errs := checkENIs(books)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "eni-loose") {
		t.Errorf("got %v", errs)
	}
}
