package labs

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// checkNames removes default routes of a pod, and expects CHECK to name them. Package datapath has
// all that CHECK finds.
func checkNames(t *testing.T, n *node.Node) {
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	for _, f := range familiesOfPods() {
		s := harness.NewSandbox(t, n)
		r := add(t, s, list)
		harness.OK(t, s.Check(t, list))
		everything := map[ipfamily.Family]string{ipfamily.IPv4: "0.0.0.0/0", ipfamily.IPv6: "::/0"}[f]
		harness.Eventually(t, patience, "CHECK names it", func() error { // the daemon may repair it before CHECK looks
			s.Do(t, func() error { return delDefaultRoutes(f) })
			return mismatch(s.Check(t, list), []string{"lacks its route to " + everything})
		})
		harness.OK(t, s.Del(t, list))
		gone(t, n, r)
	}
	s := harness.NewSandbox(t, n)
	add(t, s, list)
	err := n.Runtime(t.TempDir()).CheckNetworkList(t.Context(), list, s.RuntimeConf)
	if node.CNICode(err) != types.ErrInvalidNetworkConfig || !strings.Contains(err.Error(), "prevResult") {
		t.Errorf("CHECK without a previous result answers %v with code %d", err, node.CNICode(err))
	}
	harness.OK(t, s.Del(t, list))
}

// mismatch is nil when CHECK reports a mismatch with these words.
func mismatch(answer error, words []string) error {
	if node.CNICode(answer) != cnierror.CodeMismatch || !harness.Says(answer.Error(), words...) {
		return fmt.Errorf("CHECK answers %s with code %d, want code %d and something about %q", fmt.Sprint(answer), node.CNICode(answer), cnierror.CodeMismatch, words)
	}
	return nil
}

// familiesOfPods are the families of which pods have an address, a node-local one included, in a lab
// with default families.
func familiesOfPods() []ipfamily.Family {
	if harness.Families().Has(ipfamily.IPv6) {
		return ipfamily.Dual.Families()
	}
	return harness.Families().Families()
}

// of is the kernel's number of a family.
func of(f ipfamily.Family) int {
	if f == ipfamily.IPv6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// delDefaultRoutes removes the default routes of eth0 in the calling thread's namespace.
func delDefaultRoutes(f ipfamily.Family) error {
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	routes, err := netlink.RouteList(l, of(f))
	for _, r := range routes {
		if r.Gw != nil {
			err = errors.Join(err, netlink.RouteDel(&r))
		}
	}
	return err
}

func checkUnknown(t *testing.T, n *node.Node) {
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	s := harness.NewSandbox(t, n)
	add(t, s, list)
	// Another runtime removes the pod; ours still remembers its result.
	harness.OK(t, n.Runtime(t.TempDir()).DelNetworkList(t.Context(), list, s.RuntimeConf))
	if err := s.Check(t, list); node.CNICode(err) != types.ErrUnknownContainer {
		t.Errorf("CHECK answers %v with code %d, want %d", err, node.CNICode(err), types.ErrUnknownContainer)
	}
	harness.OK(t, s.Del(t, list))
}
