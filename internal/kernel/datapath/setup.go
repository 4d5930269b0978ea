package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Setup establishes what a node needs before its first pod: sysctls, the
// nftables table and the policy rules, reconciled with what is there. Again
// with the same Config it changes nothing; with another one it converges,
// uplinks that were set included. State of ENIs and pods from before a restart is
// kept, but where addresses are of blocks that of ENIs is removed, and the other
// way round. On failure what was done stays and the old Config remains in force for
// AddPod, unless only sysctls failed; call it again.
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
	return c.Uplinks.follow(n)
}

// errSysctl is a failure of a sysctl, and of nothing else.
var errSysctl = errors.New("sysctls of the node")

// setup is Setup under setupMu. It names what it had to change. Sysctls that cannot be set do not keep it from
// the rest, and then the error wraps errSysctl.
func (n *Node) setup(c Config) (changed []string, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	links, err := n.links()
	if err != nil {
		return nil, err
	}
	uplinks, err := c.Uplinks.links(n, links)
	if err != nil {
		return nil, err
	}
	next := &established{config: c, mtu: c.MTU}
	if next.mtu == 0 {
		next.mtu = smallestMTU(uplinks)
	}
	var names []string
	primary := "" // a routed node may have none
	for _, l := range uplinks {
		names = append(names, l.Attrs().Name)
		primary = names[0]
	}
	rs, err := buildRuleset(c, primary, uplinkState{})
	if err != nil {
		return nil, err
	}
	next.tag = rs.Tag
	changed, sysctls := n.sysctls.set(c, nodeOwner, nodeSysctls(c.Uplinks, names))
	// The table goes before the rules: a mark without a rule falls through to
	// main, a rule without marks does nothing.
	for _, step := range []func() ([]string, error){
		func() ([]string, error) { return n.setTable(c, primary) },
		func() ([]string, error) { return n.arp.set(n.nft) },
		func() ([]string, error) { return n.routing.setRules(c.Uplinks.owns, nodeRules(c.Uplinks)) },
		func() ([]string, error) { return n.clearOthers(c.Uplinks) },
	} {
		did, err := step()
		changed = append(changed, did...)
		if err != nil {
			return changed, errors.Join(sysctls, err)
		}
	}
	if sysctls == nil || n.set.Load() != nil { // AddPod waits for the first success
		n.set.Store(next)
	}
	if sysctls != nil {
		return changed, fmt.Errorf("%w: %w", errSysctl, sysctls)
	}
	return changed, nil
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
