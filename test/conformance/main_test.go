// Package conformance holds the tests of what Berth promises while nothing goes
// wrong: the CNI boundary (specification versions 0.3.1 to 1.1.0), what a node
// shows to people and monitoring, and what settings of nodes, operators and pools
// do. The real plugin is started as a container runtime starts it, with the real
// programs around it and the kernel as the judge.
package conformance

import (
	"net/netip"
	"os"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, "berthd", "berth", "berthctl", "berth-operator"))
}

const patience = harness.Patience

// prompt are settings of daemons that put right at once what a test breaks, and
// wait for an address as long as it takes.
var prompt = []string{"--repair-interval=1s", "--warm-wait=2m"}

// addrOf is the one address of a result.
func addrOf(t *testing.T, r *types100.Result) netip.Addr {
	t.Helper()
	if len(r.IPs) != 1 {
		t.Fatalf("the result has addresses %v, want one", r.IPs)
	}
	a, ok := netip.AddrFromSlice(r.IPs[0].Address.IP)
	if !ok {
		t.Fatalf("the result's address is %v", r.IPs[0])
	}
	return a.Unmap()
}

// eniOf is the ENI that has an address.
func eniOf(t *testing.T, l *lab.Lab, a netip.Addr) vpc.ENI {
	t.Helper()
	for _, e := range l.Books().ENIs {
		if e.Owns(a) {
			return e
		}
	}
	t.Fatalf("%s belongs to no ENI", a)
	return vpc.ENI{}
}
