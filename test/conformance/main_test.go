// Package conformance holds the tests of the CNI boundary (specification
// versions 0.3.1 to 1.1.0) and of what a node shows to people and monitoring:
// the real plugin, started as a container runtime starts it, the real daemon,
// and the kernel as the judge.
package conformance

import (
	"net/netip"
	"os"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berthd", "berth", "berthctl")) }

// patience is for what takes a moment on a machine with nothing else to do. It
// only ends what hangs.
const patience = 5 * time.Minute

// quick are daemon settings under which nothing takes long. berth stands alone
// in the configuration, as CHECK of the reference plugins (1.1.1) fails where
// they have nothing to do.
var quick = []string{
	"--log-level=debug", "--cni-chain=", "--cooling-period=1s", "--shrink-delay=300ms", "--netns-grace=1s",
	"--repair-interval=1s", "--warm-wait=2m", "--listing-interval=2s",
}

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

// primary is the node's own address.
func primary(t *testing.T, l *lab.Lab, n *node.Node) netip.Addr {
	t.Helper()
	enis := l.Books().InstanceENIs(n.InstanceID)
	if len(enis) == 0 {
		t.Fatalf("%s has no ENI", n.Name)
	}
	return enis[0].Primary
}
