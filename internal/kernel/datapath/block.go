package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Block is a range of addresses that is assigned to this node (Coil's design, "Routing").
type Block struct {
	Name     string         // in errors
	Prefixes []netip.Prefix // at most one of each family
}

// BlocksError lists the blocks and routes that SetBlocks could not set or remove.
type BlocksError struct {
	Failed map[string]error // by the names of the blocks that are not routed as desired
	Left   error            // about stale routes that could not be removed, or nil
}

// Error names every block and route.
func (e *BlocksError) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns the underlying errors, in the order of the blocks' names.
func (e *BlocksError) Unwrap() []error {
	var out []error
	for _, name := range slices.Sorted(maps.Keys(e.Failed)) {
		out = append(out, e.Failed[name])
	}
	if e.Left != nil {
		out = append(out, e.Left)
	}
	return out
}

// blockMetric is the metric of the unreachable route of a block. Routes of pods are preferred, even if the block is a
// single address.
const blockMetric = 1 << 30

// besideMetric is the metric of an export route if other software has a route to the same destination. Otherwise the
// kernel chooses the metric.
const besideMetric = blockMetric

// SetBlocks makes the node's blocks exactly these. Each has two routes:
//
//   - one to lo in Routed.ExportTable, which no rule looks up, for an external
//     routing daemon to announce;
//   - an unreachable one in PodTable, so that the node rejects a packet to an address
//     that no pod has instead of sending it back to the router.
//
// It adds routes before it removes any, announces a new block last, and withdraws an old block first. It is
// idempotent, and does not change what other software made. It continues after an invalid block and after a route
// that cannot be set or removed. Call it again if it fails.
//
// Errors: a *BlocksError if everything is done except what it names; after any other, such as ErrNotSetUp, the outcome
// is unknown.
func (n *Node) SetBlocks(ctx context.Context, blocks []Block) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	_, err := n.setBlocks(blocks)
	return err
}

// WithdrawBlocks removes the routes of the export table, so that the node's blocks are no longer announced, and keeps
// everything else. SetBlocks announces them again.
func (n *Node) WithdrawBlocks(ctx context.Context) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	return n.blocks.withdraw()
}

// setBlocks is SetBlocks with setupMu held. It returns what it changed.
func (n *Node) setBlocks(blocks []Block) (changed []string, err error) {
	s, err := n.established()
	if err != nil {
		return nil, err
	}
	u, err := chosen[Routed](s)
	if err != nil {
		return nil, fmt.Errorf("set up blocks: %w", err)
	}
	return n.blocks.set(blocks, u)
}

// blockRoutes are the routes of blocks. Node.setupMu serializes calls that change them.
type blockRoutes struct {
	routing
	lo        int // index of the loopback link
	announced atomic.Pointer[map[netip.Prefix]bool]
}

// has reports whether a prefix is announced.
func (t *blockRoutes) has(p netip.Prefix) bool {
	blocks := t.announced.Load()
	return blocks != nil && (*blocks)[p]
}

// list lists the routes of blocks in any table.
func (t *blockRoutes) list() ([]netlink.Route, error) {
	return t.listThat(unix.RT_TABLE_UNSPEC, isBlockRoute)
}

func (t *blockRoutes) withdraw() error {
	have, err := t.list()
	if err != nil {
		return err
	}
	t.announced.Store(nil) // Watch does not report their removal
	_, err = t.remove(slices.DeleteFunc(have, isUnreachable))
	return err
}

// set is Node.SetBlocks. It returns what it changed.
func (t *blockRoutes) set(blocks []Block, u Routed) (changed []string, err error) {
	var desired []netlink.Route
	failed := map[string]error{}
	announced, owner := map[netip.Prefix]bool{}, map[netip.Prefix]string{}
	for _, b := range blocks {
		if err := b.validate(u); err != nil {
			failed[b.Name] = fmt.Errorf("set up block %s: %w", b.Name, err)
			continue
		}
		for _, p := range b.Prefixes {
			announced[p], owner[p] = true, b.Name
			desired = append(desired, unreachableRoute(p), exportRoute(p, t.lo, u.ExportTable))
		}
	}
	have, err := t.list()
	if err != nil {
		return nil, err
	}
	t.announced.Store(&announced)
	missing, extra := diffBlockRoutes(desired, have)
	refused := map[netip.Prefix]bool{}
	for _, r := range missing {
		if !isUnreachable(r) && refused[rtnl.RouteDst(r)] {
			continue // packets to a block without its unreachable route would loop
		}
		if err := t.add(r); err != nil {
			dst := rtnl.RouteDst(r)
			failed[owner[dst]] = errors.Join(failed[owner[dst]], fmt.Errorf("add %s: %w", describeRoute(r), err))
			refused[dst] = true
			continue
		}
		changed = append(changed, describeRoute(r))
	}
	did, err := t.remove(extra)
	changed = append(changed, did...)
	if len(failed) == 0 && err == nil {
		return changed, nil
	}
	return changed, &BlocksError{Failed: failed, Left: err}
}

// add adds a missing route. PodTable is Berth's alone; in the export table other software may have a route to the
// same destination, which stays: the kernel has one route of a destination and metric.
func (t *blockRoutes) add(r netlink.Route) error {
	if isUnreachable(r) {
		return t.nl.RouteReplace(&r)
	}
	err := t.nl.RouteAdd(&r)
	if errors.Is(err, unix.EEXIST) {
		r.Priority = besideMetric
		err = t.nl.RouteAdd(&r)
	}
	return err
}

func (b Block) validate(u Routed) error {
	if len(b.Prefixes) == 0 {
		return fmt.Errorf("Prefixes: want at least one")
	}
	for _, p := range b.Prefixes {
		switch {
		case !p.IsValid() || p != p.Masked() || p.Addr().Is4In6():
			return fmt.Errorf("Prefixes: %s is not a CIDR without host bits", p)
		case p.Addr().Is6() && !u.IPv6:
			return fmt.Errorf("Prefixes: %s: the IPv6 data path is not on", p)
		}
	}
	return nil
}

func exportRoute(p netip.Prefix, lo, table int) netlink.Route {
	return netlink.Route{
		Family: rtnl.FamilyOf(p.Addr()), LinkIndex: lo, Dst: rtnl.IPNet(p), Table: table, Protocol: Protocol,
		Type: unix.RTN_UNICAST, Scope: rtnl.ScopeFor(p.Addr(), netlink.SCOPE_LINK),
	}
}

func unreachableRoute(p netip.Prefix) netlink.Route {
	return netlink.Route{
		Family: rtnl.FamilyOf(p.Addr()), Dst: rtnl.IPNet(p), Table: PodTable, Protocol: Protocol,
		Type: unix.RTN_UNREACHABLE, Priority: blockMetric,
	}
}

func isUnreachable(r netlink.Route) bool { return r.Type == unix.RTN_UNREACHABLE }

// isBlockRoute reports whether one of Berth's routes belongs to a block: an unreachable one, or one in a table other
// than PodTable and the tables of ENIs and branches. The export table may have had another number before.
func isBlockRoute(r netlink.Route) bool {
	if r.Table >= PodTable && r.Table <= lastTable {
		return isUnreachable(r)
	}
	return true
}

// diffBlockRoutes lists missing routes, unreachable ones first, and extra ones, unreachable ones last.
func diffBlockRoutes(desired, have []netlink.Route) (missing, extra []netlink.Route) {
	d := routing{}.routeKind().Compare(desired, have)
	rank := func(r netlink.Route) int {
		if isUnreachable(r) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(d.Missing, func(a, b netlink.Route) int { return cmp.Compare(rank(a), rank(b)) })
	slices.SortStableFunc(d.Extra, func(a, b netlink.Route) int { return cmp.Compare(rank(b), rank(a)) })
	return d.Missing, d.Extra
}

// Routed is a node whose pods have addresses of its blocks (SetBlocks). Packets are not translated, and the main
// table routes them.
type Routed struct {
	noENIs

	// ExportTable is the routing table that an external routing daemon reads.
	ExportTable int
	// IPv6 turns the IPv6 data path on.
	IPv6 bool
}

func (u Routed) kind() string { return "routed" }

// validate implements Uplinks. The kernel's own tables are 253 to 255 (rtnetlink(7)).
func (u Routed) validate() error {
	t := u.ExportTable
	if t < 1 || t > math.MaxInt32 || t >= unix.RT_TABLE_DEFAULT && t <= unix.RT_TABLE_LOCAL ||
		t >= PodTable && t <= lastTable {
		return fmt.Errorf("ExportTable %d: want an unused routing table: not %d to %d, which the kernel uses, and not %d to %d, which Berth uses",
			t, unix.RT_TABLE_DEFAULT, unix.RT_TABLE_LOCAL, PodTable, lastTable)
	}
	return nil
}

// lastTable is the highest table number of Berth: that of a branch with VLAN 4094.
const lastTable = BranchTableBase + 4094

func (u Routed) ipv6() bool { return u.IPv6 }

// links returns the links of the main table's default routes, except lo, to which the kernel points unreachable IPv6 routes.
// There may be none yet, as a routing daemon may add the routes later.
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

func (u Routed) none() Supply { return BlockList(nil) }

func (u Routed) clear(n *Node) ([]string, error) {
	n.blocks.announced.Store(nil)
	return n.routing.removeThat(unix.RT_TABLE_UNSPEC, isBlockRoute)
}

// BlockList is all blocks of a routed node.
type BlockList []Block

func (l BlockList) restore(n *Node) ([]string, error) { return n.setBlocks(l) }

// tidy has nothing to do: setBlocks removes the routes of other blocks.
func (l BlockList) tidy(*Node, Inventory) ([]string, error) { return nil, nil }
