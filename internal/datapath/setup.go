package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Setup establishes what a node needs before its first pod: sysctls, the
// nftables table and the policy rules, reconciled with what is there. Again
// with the same Config it changes nothing; with another one it converges,
// ENIs that were set included. State of ENIs and pods from before a restart is
// kept, but where addresses are of blocks that of ENIs is removed, and the other
// way round. On failure what was done stays and the old Config remains in force for
// AddPod; call it again.
//
// Errors: ErrNoLink when no link has PrimaryMAC, or that of an ENI that was
// set is gone; others name the sysctl, rule or table.
func (n *Node) Setup(ctx context.Context, c Config) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	if _, err := n.setup(c); err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	var errs []error
	for _, eni := range n.knownENIs() { // their rules and chains follow the Config
		_, err := n.setENI(eni)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// setup is Setup under setupMu. It names what it had to change.
func (n *Node) setup(c Config) (changed []string, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	links, err := whole(n.slow.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	uplinks, err := n.uplinks(c, links)
	if err != nil {
		return nil, err
	}
	next := &settled{config: c, mtu: c.MTU}
	if next.mtu == 0 {
		next.mtu = smallestMTU(uplinks)
	}
	var names []string
	primary := "" // a pool's node has none
	for _, l := range uplinks {
		names = append(names, l.Attrs().Name)
		primary = names[0]
	}
	rs, err := buildRuleset(c, primary, nil)
	if err != nil {
		return nil, err
	}
	next.tag = rs.tag
	// The table goes before the rules: a mark without a rule falls through to
	// main, a rule without marks does nothing.
	for _, step := range []func() ([]string, error){
		func() ([]string, error) { return n.setSysctls(nodeSysctls(c, names)) },
		func() ([]string, error) { return n.setTable(c, primary) },
		n.setARPTable,
		func() ([]string, error) { return n.setRules(ruledBy(c), nodeRules(c)) },
		func() ([]string, error) { return n.leaveOtherMode(c) },
	} {
		did, err := step()
		changed = append(changed, did...)
		if err != nil {
			return changed, err
		}
	}
	n.set.Store(next)
	return changed, nil
}

// uplinks are the links by which packets leave the node: the primary ENI's, or,
// where addresses are of blocks, those of the main table's default routes, without
// lo, by which IPv6 has unreachable ones. There may be none of them yet, as a
// routing daemon may bring them.
func (n *Node) uplinks(c Config, links []netlink.Link) ([]netlink.Link, error) {
	if !c.pools() {
		primary, err := linkByMAC(links, c.PrimaryMAC)
		if err != nil {
			return nil, fmt.Errorf("find the primary link: %w", err)
		}
		return []netlink.Link{primary}, nil
	}
	var out []netlink.Link
	for _, family := range c.families() {
		routes, err := whole(func() ([]netlink.Route, error) {
			return n.slow.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list %s routes: %w", familyName(family), err)
		}
		for _, r := range routes {
			if routeDst(r).Bits() != 0 {
				continue
			}
			hops := []int{r.LinkIndex}
			for _, h := range r.MultiPath {
				hops = append(hops, h.LinkIndex)
			}
			for _, l := range links {
				if slices.Contains(hops, l.Attrs().Index) && l.Attrs().Index != n.lo && !slices.Contains(out, l) {
					out = append(out, l)
				}
			}
		}
	}
	return out, nil
}

// defaultMTU is Ethernet's, of links of pods where nothing tells better (RFC 894).
const defaultMTU = 1500

func smallestMTU(links []netlink.Link) int {
	mtu := 0
	for _, l := range links {
		if m := l.Attrs().MTU; mtu == 0 || m < mtu {
			mtu = m
		}
	}
	return cmp.Or(mtu, defaultMTU)
}

// knownENIs are those that SetENI established, by device index.
func (n *Node) knownENIs() []ENI {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := slices.Collect(maps.Values(n.enis))
	slices.SortFunc(list, func(a, b ENI) int { return a.DeviceIndex - b.DeviceIndex })
	return list
}
