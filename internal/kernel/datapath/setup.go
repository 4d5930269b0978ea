package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"

	"github.com/vishvananda/netlink"
)

// Setup sets up what a node needs before its first pod: sysctls, the nftables table and the policy rules. It is
// idempotent, and with another Config it also changes uplinks that were set. It keeps state of ENIs and pods from
// before a restart, but removes that of ENIs if pods have addresses of blocks, and the other way round. After a failure
// completed changes stay, and AddPod uses the old Config unless only sysctls failed; call it again.
//
// Errors: ErrNoLink if no link has PrimaryMAC, or the link of an ENI that was set is gone; others name the sysctl,
// rule or table.
func (n *Node) Setup(ctx context.Context, c Config) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	if _, err := (&setup{node: n, config: c}).run(); err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	return c.Uplinks.follow(n)
}

// errSysctl means that sysctls could not be set, and everything else succeeded.
var errSysctl = errors.New("sysctls of the node")

// setup is one call of Setup, with setupMu held.
type setup struct {
	node    *Node
	config  Config
	primary string // the name of the primary link; empty: a routed node has none yet
}

// run returns what it changed. It continues if sysctls cannot be set; the error then wraps errSysctl.
func (s *setup) run() (changed []string, err error) {
	n, c := s.node, s.config
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
	for _, l := range uplinks {
		names = append(names, l.Attrs().Name)
		s.primary = names[0]
	}
	rs, err := buildRuleset(c, s.primary, uplinkState{})
	if err != nil {
		return nil, err
	}
	next.tag = rs.Tag
	changed, sysctls := n.sysctls.set(c, nodeOwner, nodeSysctls(c.Uplinks, names))
	// The table comes before the rules: packets with a mark but without a rule use main, and a rule without marks
	// does nothing.
	for _, step := range []func() ([]string, error){
		s.setTable,
		func() ([]string, error) { return n.arp.set(n.nft) },
		func() ([]string, error) { return n.routing.setRules(c.Uplinks.owns, nodeRules(c.Uplinks)) },
		s.clearOthers,
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

// setTable replaces Berth's table in one transaction, unless it is already as desired.
func (s *setup) setTable() (changed []string, err error) {
	n, c := s.node, s.config
	conn, err := n.nft()
	if err != nil {
		return nil, err
	}
	state, err := c.Uplinks.state(n, conn)
	if err != nil {
		return nil, err
	}
	rs, err := buildRuleset(c, s.primary, state)
	if err != nil {
		return nil, err
	}
	if rs.InKernel(conn) {
		return nil, nil
	}
	if err := rs.Replace(conn); err != nil {
		return nil, err
	}
	if err := state.add(conn, rs.markShift); err != nil {
		return nil, fmt.Errorf("encode map entries: %w", err)
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("replace nftables table %q: %w", NftTable, err)
	}
	did, err := c.Uplinks.replaced(n)
	if err != nil { // not fatal: the table is in place
		cmp.Or(c.Log, slog.New(slog.DiscardHandler)).Warn("the nftables table was replaced; connections that are not translated may get no answers", "err", err)
	}
	return append([]string{"nftables table " + NftTable}, did...), nil
}

// clearOthers removes the state of other kinds of uplinks.
func (s *setup) clearOthers() (changed []string, err error) {
	for _, u := range implementations {
		if u.kind() == s.config.Uplinks.kind() {
			continue
		}
		did, err := u.clear(s.node)
		changed = append(changed, did...)
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// defaultMTU is Ethernet's (RFC 894), for pod links if no uplink is known.
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

// Config is the desired state of a node, without its ENIs, blocks and pods.
type Config struct {
	// Uplinks defines how packets of pods leave the node: a VPC, a Routed or Ports.
	Uplinks Uplinks
	// BlockMetadata rejects packets of pods to 169.254.169.254 and fd00:ec2::254.
	BlockMetadata bool
	// MaxConnections limits the tracked connections of each address of a pod, including unanswered ones; 0: only the
	// node's own limit applies.
	MaxConnections int
	// MTU of pod links and secondary ENIs in bytes; 0: the primary link's, or on a routed node the smallest of the
	// uplinks.
	MTU int
	// Sysctls is the folder of the kernel's settings; /proc/sys if empty. /proc/sys is read-only in an unprivileged
	// container, which may mount it elsewhere as well.
	Sysctls string
	// Log receives the sysctls that change; nil: no log.
	Log *slog.Logger
}

// Validate returns an error about the first invalid field.
func (c Config) Validate() error {
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		return fmt.Errorf("MTU %d: want 0 or %d to %d", c.MTU, minMTU, maxMTU)
	}
	if c.MaxConnections < 0 || c.MaxConnections > math.MaxInt32 {
		return fmt.Errorf("MaxConnections %d: want 0 to %d", c.MaxConnections, math.MaxInt32)
	}
	if c.Uplinks == nil {
		return errors.New("Uplinks: want a VPC, a Routed or Ports")
	}
	return c.Uplinks.validate()
}

// IPv6 needs links of 1280 bytes (RFC 8200 section 5), IPv4 of 68 (RFC 791); 65535 is the maximum of veth.
const (
	minMTU = 576
	maxMTU = 65535
)
