//go:build guest && e2e

package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestReusedAddressIsNoClient has a client go in the middle of conversations, and another pod get its address at once:
// gateways know nothing of the old one any more, and the new one, which is no client, is seen as itself.
func TestReusedAddressIsNoClient(t *testing.T) {
	s := tell(t, "reused")
	n := s.lab.Nodes()[0]
	old := s.client(n, "old")
	s.reaches(old, nil)
	talk := s.talk(old, "udp", 4, 50*time.Millisecond)
	talk.flow(s, 40)
	harness.OK(t, n.DelPod(harness.Deadline(t, harness.Patience), old.Name))
	_ = talk.end() // it ends with its pod

	heir := s.heir(n, old.Addr())
	as, err := seenAs(t.Context(), heir, "udp", site.OutsideHost, answerWithin)
	harness.OK(t, err)
	if as != heir.Addr() {
		t.Errorf("the pod with the address of a client that is gone is seen as %s, want itself", as)
	}
	for _, g := range s.lab.Gateways(s.key) {
		harness.Eventually(t, harness.Patience, g.Name+" forgets the client that is gone", func() error { return forgotten(g, old.Addrs) })
	}
}

// heir makes pods, which are no clients, until one has an address.
func (s *story) heir(n *node.Node, a netip.Addr) *node.Pod {
	s.t.Helper()
	for i := range 40 {
		p, err := n.AddPod(harness.Deadline(s.t, harness.Patience), fmt.Sprintf("heir-%d", i), node.PodOptions{Namespace: s.clients()})
		harness.OK(s.t, err)
		if p.Addr() == a {
			return p
		}
		harness.OK(s.t, n.DelPod(harness.Deadline(s.t, harness.Patience), p.Name))
	}
	s.t.Fatalf("no pod of 40 got the address %s", a)
	return nil
}

// forgotten wants a gateway to track no connection of some addresses.
func forgotten(g *lab.Gateway, addrs []netip.Addr) error {
	return ns.Do(g.Pod.Netns(), func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, f := range flows {
				if from, ok := netip.AddrFromSlice(f.Forward.SrcIP); ok && slices.Contains(addrs, from.Unmap()) {
					return fmt.Errorf("it tracks %s", f)
				}
			}
		}
		return nil
	})
}
