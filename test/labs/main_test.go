// Package conformance holds the tests of what Berth promises while nothing goes
// wrong: the CNI boundary (specification versions 0.3.1 to 1.1.0), what a node
// shows to people and monitoring, and what settings of nodes, operators and pools
// do. The real plugin is started as a container runtime starts it, with the real
// programs around it and the kernel as the judge.
package conformance

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, "berthd", "berth", "berthctl", "berth-operator"))
}

const patience = harness.Patience

// prompt are settings of daemons that put right at once what a test breaks, and
// wait for an address as long as it takes.
var prompt = []string{"--repair-interval=1s", "--warm-wait=2m"}

// addrsOf are the addresses of a result, at most one of each family.
func addrsOf(t *testing.T, r *types100.Result) (addrs []netip.Addr) {
	t.Helper()
	for _, ip := range r.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			t.Fatalf("the result's address is %v", ip)
		}
		addrs = append(addrs, a.Unmap())
	}
	if len(addrs) == 0 || len(addrs) > 2 || len(addrs) == 2 && addrs[0].Is4() == addrs[1].Is4() {
		t.Fatalf("the result has addresses %v, want one of each family of the pod's", addrs)
	}
	return addrs
}

// share tells whether two lists have an address in common.
func share(a, b []netip.Addr) bool {
	return slices.ContainsFunc(a, func(a netip.Addr) bool { return slices.Contains(b, a) })
}

// questions is how many of oracle.Reach are answered, where each of some pods has another
// on its node and one on the next: to two pods, the own node and the internet, by TCP and
// UDP, in each family that it has; and with a node-local address of the other family to
// the next node and the internet.
func questions(pods int, families ipfamily.Set, nodeLocal bool) int {
	n := 4 * len(families.Families())
	if nodeLocal {
		n += 2
	}
	return pods * n * 2
}

// eniOf is the ENI that has an address.
func eniOf(t *testing.T, l *lab.Lab, a netip.Addr) vpc.ENI {
	t.Helper()
	for _, e := range l.Snapshot().ENIs {
		if e.Owns(a) {
			return e
		}
	}
	t.Fatalf("%s belongs to no ENI", a)
	return vpc.ENI{}
}
