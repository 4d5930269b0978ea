package datapath

import (
	"fmt"
	"math"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Routed is a node whose pods have addresses of its blocks (SetBlocks): nothing
// is translated, and every packet leaves as the main table says.
type Routed struct {
	// ExportTable is the routing table that an external routing daemon reads.
	ExportTable int
	// IPv6 turns the IPv6 data path on.
	IPv6 bool
}

func (u Routed) kind() string { return "routed" }

// validate: the kernel's own tables are 253 to 255 (rtnetlink(7)).
func (u Routed) validate() error {
	t := u.ExportTable
	if t < 1 || t > math.MaxInt32 || t >= unix.RT_TABLE_DEFAULT && t <= unix.RT_TABLE_LOCAL ||
		t >= PodTable && t <= lastTable {
		return fmt.Errorf("ExportTable %d: want a routing table that is nobody's: not %d to %d, which the kernel looks up, nor %d to %d, which Berth does",
			t, unix.RT_TABLE_DEFAULT, unix.RT_TABLE_LOCAL, PodTable, lastTable)
	}
	return nil
}

// lastTable is the last one of Berth's: that of a branch with VLAN 4094.
const lastTable = BranchTableBase + 4094

func (u Routed) ipv6() bool { return u.IPv6 }

// links are those of the main table's default routes, without lo, by which IPv6
// has unreachable ones. There may be none of them yet, as a routing daemon may
// bring them.
func (u Routed) links(n *Node, all []netlink.Link) (out []netlink.Link, err error) {
	for _, family := range families(u) {
		routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return n.slow.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list %s routes: %w", familyName(family), err)
		}
		for _, r := range routes {
			if rtnl.RouteDst(r).Bits() != 0 {
				continue
			}
			hops := []int{r.LinkIndex}
			for _, h := range r.MultiPath {
				hops = append(hops, h.LinkIndex)
			}
			for _, l := range all {
				if slices.Contains(hops, l.Attrs().Index) && l.Attrs().Index != n.lo && !slices.Contains(out, l) {
					out = append(out, l)
				}
			}
		}
	}
	return out, nil
}

func (u Routed) rules(int) []netlink.Rule { return nil }

func (u Routed) owns(netlink.Rule) bool { return true }

func (u Routed) addTo(*ruleset, string) {}

func (u Routed) state(*Node, *nftables.Conn) (uplinkState, error) { return uplinkState{}, nil }

func (u Routed) replaced(*Node) ([]string, error) { return nil, nil }

func (u Routed) follow(*Node) error { return nil }

func (u Routed) none() Carriers { return BlockList(nil) }

func (u Routed) clear(n *Node) ([]string, error) {
	n.blocks.announced.Store(nil)
	return n.routing.removeThat(unix.RT_TABLE_UNSPEC, isBlockRoute)
}

// BlockList is all blocks of a routed node.
type BlockList []Block

func (l BlockList) restore(n *Node) ([]string, error) { return n.setBlocks(l) }

// tidy has nothing to do: setBlocks removes what is of no block.
func (l BlockList) tidy(*Node, Inventory) ([]string, error) { return nil, nil }
