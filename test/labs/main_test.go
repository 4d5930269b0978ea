// Package labs has the tests that need a lab: real programs in network namespaces, so that the kernel is real, with
// an EC2, a data centre and a Kubernetes API server. Each file covers one documented behaviour, in every mode, both
// under normal conditions and under disturbances from outside Berth.
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

// prompt has settings of daemons that repair immediately and wait for an address as long as it takes.
var prompt = []string{"--repair-interval=1s", "--warm-wait=2m"}

// lean has settings that keep no more addresses than requested.
var lean = []string{"--warm-ip-target=1", "--minimum-ip-target=1"}

// addrsOf returns the addresses of a result, at most one of each family.
func addrsOf(t *testing.T, r *types100.Result) (addrs []netip.Addr) {
	t.Helper()
	for _, ip := range r.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			t.Fatalf("invalid address in the result: %v", ip)
		}
		addrs = append(addrs, a.Unmap())
	}
	if len(addrs) == 0 || len(addrs) > 2 || len(addrs) == 2 && addrs[0].Is4() == addrs[1].Is4() {
		t.Fatalf("addresses in the result = %v, want one per family", addrs)
	}
	return addrs
}

// share reports whether two lists have an address in common.
func share(a, b []netip.Addr) bool {
	return slices.ContainsFunc(a, func(a netip.Addr) bool { return slices.Contains(b, a) })
}

// questions returns how many questions of oracle.Reach get replies if each pod has another one on its node and one on the
// next: to two pods, its node and the internet, over TCP and UDP, in each family of the pod; with a node-local address of
// the other family also to the next node and the internet.
func questions(pods int, families ipfamily.Set, nodeLocal bool) int {
	n := 4 * len(families.Families())
	if nodeLocal {
		n += 2
	}
	return pods * n * 2
}

// reach checks that all pods reach their expected destinations, with this number of replies unless 0, and waits until
// the lab is at rest.
func reach(t *testing.T, l *lab.Lab, when string, want int) {
	t.Helper()
	answers, err := oracle.Reach(harness.Deadline(t, patience), l)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if want > 0 && answers != want {
		t.Errorf("%s: %d replies, want %d", when, answers, want)
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

// eniOf returns the ENI that has an address.
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

// full waits until an ADD fails because no address is free, with an error that contains all words. The daemon may
// still be retrying when the first ADDs fail.
func full(t *testing.T, n *node.Node, name string, words ...string) {
	t.Helper()
	failsAtLast(t, types.ErrTryAgainLater, append(words, "no address"), func() error { return harness.AddOnce(t, n, name) })
}

// failsAtLast waits for a CNI error with a code that contains all words.
func failsAtLast(t *testing.T, code uint, words []string, call func() error) {
	t.Helper()
	var err error
	harness.Eventually(t, patience, fmt.Sprintf("error with %q", words), func() error {
		if err = call(); err == nil || node.CNICode(err) != code || harness.Says(err.Error(), words...) {
			return nil
		}
		return err
	})
	harness.Fails(t, err, code, words...)
}

// takesPods checks that STATUS succeeds: if it fails, the node's pods are evicted.
func takesPods(t *testing.T, n *node.Node) {
	t.Helper()
	list := harness.Network(t, "1.1.0", "berth", harness.Plugin(n, nil))
	harness.OK(t, n.Runtime(t.TempDir()).GetStatusNetworkList(harness.Deadline(t, patience), list))
}
