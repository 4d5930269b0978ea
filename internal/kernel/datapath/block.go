package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Block is a range of addresses that is this node's (Coil's design, "Routing").
type Block struct {
	Name     string         // in errors
	Prefixes []netip.Prefix // one of each family that it has
}

// BlocksError is what SetBlocks did not get done.
type BlocksError struct {
	Failed map[string]error // blocks by name that are not routed as they should be
	Left   error            // routes of others that should have gone and did not; nil without
}

// Error names every block and route.
func (e *BlocksError) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap gives the errors behind it, in the order of the blocks' names.
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

// blockMetric is that of the unreachable route of a block: any route of a pod
// in it comes first, also where the block is one address.
const blockMetric = 1 << 30

// besideMetric is that of an export route next to someone else's of the same
// destination; as a rule it has the kernel's own choice.
const besideMetric = blockMetric

// SetBlocks makes the node's blocks exactly these. Each has two routes:
//
//   - in Routed.ExportTable, which no rule looks up, one by lo, for an external
//     routing daemon to announce;
//   - in PodTable an unreachable one, so that a packet to an address that no pod
//     has is refused here instead of going back to the router.
//
// Additions come first and a block is announced last; what goes is withdrawn
// first. It is idempotent, and leaves alone what Berth did not make. A block that
// cannot be right, or a route that cannot be set or removed, does not keep it from
// the rest. On failure what was done stays; call it again.
//
// Errors: a *BlocksError tells what is not done, and all else is; any other, such
// as ErrNotSetUp, tells that nothing is known.
func (n *Node) SetBlocks(ctx context.Context, blocks []Block) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	_, err := n.setBlocks(blocks)
	return err
}

// WithdrawBlocks removes the routes of the export table: the node's blocks are
// not announced any more. All else stays. SetBlocks announces them again.
func (n *Node) WithdrawBlocks(ctx context.Context) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	have, err := n.listBlockRoutes()
	if err != nil {
		return err
	}
	n.exported.Store(&map[netip.Prefix]bool{}) // their removal is no loss
	_, err = n.removeRoutes(slices.DeleteFunc(have, isUnreachable))
	return err
}

// setBlocks is SetBlocks under setupMu. It names what it had to change.
func (n *Node) setBlocks(blocks []Block) (changed []string, err error) {
	s, err := n.established()
	if err != nil {
		return nil, err
	}
	u, err := chosen[Routed](s)
	if err != nil {
		return nil, fmt.Errorf("set up blocks: %w", err)
	}
	var want []netlink.Route
	failed := map[string]error{}
	announced, owner := map[netip.Prefix]bool{}, map[netip.Prefix]string{}
	for _, b := range blocks {
		if err := b.validate(u); err != nil {
			failed[b.Name] = fmt.Errorf("set up block %s: %w", b.Name, err)
			continue
		}
		for _, p := range b.Prefixes {
			announced[p], owner[p] = true, b.Name
			want = append(want, unreachableRoute(p), exportRoute(p, n.lo, u.ExportTable))
		}
	}
	have, err := n.listBlockRoutes()
	if err != nil {
		return nil, err
	}
	n.exported.Store(&announced)
	missing, extra := diffBlockRoutes(want, have)
	refused := map[netip.Prefix]bool{}
	for _, r := range missing {
		if !isUnreachable(r) && refused[rtnl.RouteDst(r)] {
			continue // a block that would loop is not announced
		}
		if err := n.addBlockRoute(r); err != nil {
			dst := rtnl.RouteDst(r)
			failed[owner[dst]] = errors.Join(failed[owner[dst]], fmt.Errorf("add %s: %w", describeRoute(r), err))
			refused[dst] = true
			continue
		}
		changed = append(changed, describeRoute(r))
	}
	did, err := n.removeRoutes(extra)
	changed = append(changed, did...)
	if len(failed) == 0 && err == nil {
		return changed, nil
	}
	return changed, &BlocksError{Failed: failed, Left: err}
}

// addBlockRoute adds a route that is not there. PodTable is Berth's alone; in
// the export table someone else may have a route to the same destination, which
// stays: two routes of one destination and metric cannot be.
func (k *kernel) addBlockRoute(r netlink.Route) error {
	if isUnreachable(r) {
		return k.slow.RouteReplace(&r)
	}
	err := k.slow.RouteAdd(&r)
	if errors.Is(err, unix.EEXIST) {
		r.Priority = besideMetric
		err = k.slow.RouteAdd(&r)
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

// isBlockRoute tells the routes of blocks from Berth's others: the unreachable
// ones, and what is in a table that is neither PodTable nor an ENI's nor of branches. The export
// table may have had another number before, which was none of these either.
func isBlockRoute(r netlink.Route) bool {
	if r.Table >= PodTable && r.Table <= lastTable {
		return isUnreachable(r)
	}
	return true
}

// listBlockRoutes lists what there is of blocks, in any table.
func (k *kernel) listBlockRoutes() ([]netlink.Route, error) { return k.listOwnRoutes(isBlockRoute) }

// listOwnRoutes lists Berth's routes of a kind, of both families and all tables.
func (k *kernel) listOwnRoutes(kind func(netlink.Route) bool) (list []netlink.Route, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := k.listRoutes(k.slow, family, unix.RT_TABLE_UNSPEC)
		if err != nil {
			return nil, err
		}
		list = append(list, slices.DeleteFunc(routes, func(r netlink.Route) bool { return !kind(r) })...)
	}
	return list, nil
}

// blockRouteID is what makes two routes of blocks the same.
type blockRouteID struct {
	dst   netip.Prefix
	table int
	kind  int // such as unix.RTN_UNREACHABLE
	// Of an unreachable route, whose link is none in IPv4 and lo in IPv6, the
	// metric counts; of an export route, whose metric the kernel chooses, the link.
	metric, link int
}

func blockRouteKey(r netlink.Route) blockRouteID {
	k := blockRouteID{dst: rtnl.RouteDst(r), table: r.Table, kind: r.Type}
	if isUnreachable(r) {
		k.metric = r.Priority
	} else {
		k.link = r.LinkIndex
	}
	return k
}

// diffBlockRoutes lists what is missing, unreachable routes first, and what is
// too much, those last.
func diffBlockRoutes(want, have []netlink.Route) (missing, extra []netlink.Route) {
	missing, extra = diff(want, have, blockRouteKey)
	rank := func(r netlink.Route) int {
		if isUnreachable(r) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(missing, func(a, b netlink.Route) int { return cmp.Compare(rank(a), rank(b)) })
	slices.SortStableFunc(extra, func(a, b netlink.Route) int { return cmp.Compare(rank(b), rank(a)) })
	return missing, extra
}

func (k *kernel) removeRoutes(routes []netlink.Route) (did []string, err error) {
	var errs []error
	for _, r := range routes {
		if err := k.slow.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
			errs = append(errs, fmt.Errorf("remove %s: %w", describeRoute(r), err))
			continue
		}
		did = append(did, "removed "+describeRoute(r))
	}
	return did, errors.Join(errs...)
}

// removeRoutesThat removes Berth's routes of a kind.
func (k *kernel) removeRoutesThat(are func(netlink.Route) bool) ([]string, error) {
	have, err := k.listOwnRoutes(are)
	if err != nil {
		return nil, err
	}
	return k.removeRoutes(have)
}

func describeRoute(r netlink.Route) string {
	if isUnreachable(r) {
		return fmt.Sprintf("unreachable route %s", rtnl.RouteDst(r))
	}
	return fmt.Sprintf("route %s of table %d", rtnl.RouteDst(r), r.Table)
}
