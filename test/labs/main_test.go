// Package labs holds the tests that need a lab: real programs in network namespaces, whose
// kernel is the judge, and an EC2, a data centre and a Kubernetes API server beside them. A
// file has one behaviour of the documentation, in every mode, both while nothing goes wrong
// and while something outside Berth does.
package labs

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, "berthd", "berth", "berthctl", "berth-operator"))
}

const patience = harness.Patience

// prompt are settings of daemons that repair at once and wait for an address as long as it takes.
var prompt = []string{"--repair-interval=1s", "--warm-wait=2m"}

// lean keeps no more addresses than asked for.
var lean = []string{"--warm-ip-target=1", "--minimum-ip-target=1"}

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

// share reports whether two lists have an address in common.
func share(a, b []netip.Addr) bool {
	return slices.ContainsFunc(a, func(a netip.Addr) bool { return slices.Contains(b, a) })
}

// questions is how many questions of oracle.Reach are answered, where each pod has another one on its
// node and one on the next: to two pods, its node and the internet, by TCP and UDP, in each family
// that it has; with a node-local address of the other family also to the next node and the internet.
func questions(pods int, families ipfamily.Set, nodeLocal bool) int {
	n := 4 * len(families.Families())
	if nodeLocal {
		n += 2
	}
	return pods * n * 2
}

// reach checks that all pods reach what they should, with this many answers unless it is 0, and waits
// until the lab is at rest.
func reach(t *testing.T, l *lab.Lab, when string, want int) {
	t.Helper()
	answers, err := oracle.Reach(harness.Deadline(t, patience), l)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if want > 0 && answers != want {
		t.Errorf("%s: %d questions were answered, want %d", when, answers, want)
	}
	harness.Settle(t, l)
}

// empty removes all pods of a lab, and waits until it is at rest.
func empty(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, n := range l.Nodes() {
		harness.RemoveAll(t, n)
	}
	harness.Settle(t, l)
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

// full waits until an ADD fails for want of an address, with an error that has all words. The
// daemon may still be trying when the first ADDs fail.
func full(t *testing.T, n *node.Node, name string, words ...string) {
	t.Helper()
	failsAtLast(t, types.ErrTryAgainLater, append(words, "no address"), func() error { return harness.AddOnce(t, n, name) })
}

// failsAtLast waits for a CNI error of a code that has all words.
func failsAtLast(t *testing.T, code uint, words []string, call func() error) {
	t.Helper()
	var err error
	harness.Eventually(t, patience, fmt.Sprintf("the error says %q", words), func() error {
		if err = call(); err == nil || node.CNICode(err) != code || harness.Says(err.Error(), words...) {
			return nil
		}
		return err
	})
	harness.Fails(t, err, code, words...)
}

// takesPods checks that STATUS succeeds: where it fails, the node's pods are evicted.
func takesPods(t *testing.T, n *node.Node) {
	t.Helper()
	list := harness.Network(t, "1.1.0", "berth", harness.Plugin(n, nil))
	harness.OK(t, n.Runtime(t.TempDir()).GetStatusNetworkList(harness.Deadline(t, patience), list))
}
