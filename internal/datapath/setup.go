package datapath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Setup establishes what a node needs before its first pod: sysctls, the
// nftables table and the policy rules, reconciled with what is there. Again
// with the same Config it changes nothing; with another one it converges,
// ENIs that were set included. State of ENIs and pods from before a restart is
// kept. On failure what was done stays and the old Config remains in force for
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
	primary, err := linkByMAC(links, c.PrimaryMAC)
	if err != nil {
		return nil, fmt.Errorf("find the primary link: %w", err)
	}
	a := primary.Attrs()
	next := &settled{config: c, mtu: c.MTU}
	if next.mtu == 0 {
		next.mtu = a.MTU
	}
	rs, err := buildRuleset(c, a.Name, nil)
	if err != nil {
		return nil, err
	}
	next.tag = rs.tag
	// The table goes before the rules: a mark without a rule falls through to
	// main, a rule without marks does nothing.
	for _, step := range []func() ([]string, error){
		func() ([]string, error) { return n.setSysctls(nodeSysctls(c, a.Name)) },
		func() ([]string, error) { return n.setTable(c, a.Name) },
		func() ([]string, error) { return n.setRules(isNodeRule, nodeRules(c)) },
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

// knownENIs are those that SetENI established, by device index.
func (n *Node) knownENIs() []ENI {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := slices.Collect(maps.Values(n.enis))
	slices.SortFunc(list, func(a, b ENI) int { return a.DeviceIndex - b.DeviceIndex })
	return list
}
