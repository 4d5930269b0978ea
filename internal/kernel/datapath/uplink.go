package datapath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Uplink is the desired state of an interface by which packets of pods leave a VPC's node, such as an elastic network
// interface.
type Uplink struct {
	ID  string // identifies the uplink in errors
	MAC net.HardwareAddr
	// Number is unique on the node, 1 to MaxUplink on a secondary ENI, and never changes: the uplink's table and mark
	// depend on it.
	Number int
	// Primary ENIs are set up by the operating system: Berth only sets sysctls there.
	Primary bool
	// PrimaryIPv4 is the ENI's own address. On a secondary ENI it is added to the link, unless it is among Addresses
	// and thus for pods.
	PrimaryIPv4 netip.Addr
	Subnet      netip.Prefix // IPv4
	// Addresses and Prefixes, of both families, are for pods. Prefixes must be of the lengths that EC2 assigns, /28
	// and /80.
	Addresses []netip.Addr
	Prefixes  []netip.Prefix

	link int // the interface index of the link that SetUplink found
}

// Lengths of the prefixes that EC2 assigns to an ENI (EC2 user guide,
// "Prefix delegation").
const (
	prefixBits4 = 28
	prefixBits6 = 80
)

// vpcGateway6 is the IPv6 router of every VPC subnet (Amazon VPC user guide, "Subnet
// CIDR reservations").
var vpcGateway6 = netip.MustParseAddr("fe80:ec2::1")

// Validate returns an error about the first invalid field.
func (e Uplink) Validate() error {
	if len(e.MAC) != 6 {
		return fmt.Errorf("MAC %q: want six octets", e.MAC)
	}
	if e.Primary {
		return nil
	}
	if e.Number < 1 || e.Number > MaxUplink {
		return fmt.Errorf("Number %d: want a device index of 1 to %d on a secondary ENI", e.Number, MaxUplink)
	}
	if e.PrimaryIPv4.IsValid() && !e.PrimaryIPv4.Is4() {
		return fmt.Errorf("PrimaryIPv4 %s: not an IPv4 address", e.PrimaryIPv4)
	}
	if e.hasIPv4() && !e.gateway4().Is4() {
		return fmt.Errorf("Subnet: want the IPv4 subnet of the ENI, for its router")
	}
	for _, a := range e.Addresses {
		if !a.Is4() && !rtnl.IsIPv6(a) {
			return fmt.Errorf("Addresses: %s is not an IPv4 or IPv6 address", a)
		}
	}
	for _, p := range e.Prefixes {
		if want := prefixBits(p.Addr()); !p.IsValid() || p.Bits() != want || p != p.Masked() {
			return fmt.Errorf("Prefixes: %s: want an aligned /%d (EC2 assigns no other)", p, want)
		}
	}
	return nil
}

func prefixBits(a netip.Addr) int {
	if a.Is4() {
		return prefixBits4
	}
	return prefixBits6
}

func (e Uplink) table() int { return UplinkTableBase + e.Number }

func (e Uplink) hasIPv4() bool {
	return e.PrimaryIPv4.IsValid() || e.Subnet.IsValid() || e.has(netip.Addr.Is4)
}

func (e Uplink) hasIPv6() bool { return e.has(rtnl.IsIPv6) }

func (e Uplink) has(family func(netip.Addr) bool) bool {
	return slices.ContainsFunc(e.Addresses, family) ||
		slices.ContainsFunc(e.Prefixes, func(p netip.Prefix) bool { return family(p.Addr()) })
}

// gateway4 is the IPv4 router: the subnet's first address (Amazon VPC user guide,
// "VPC and subnet sizing").
func (e Uplink) gateway4() netip.Addr {
	if !e.Subnet.IsValid() {
		return netip.Addr{}
	}
	return e.Subnet.Masked().Addr().Next()
}

// SetUplink sets up an ENI for pods: link up, MTU, loose rp_filter, an address, its table, its rule, and the map from
// its addresses to its mark. It is idempotent and restores what is missing. If only Addresses changed, it changes
// only the map, and the link's address if PrimaryIPv4 was added to or removed from them. If it fails, what was done
// stays; call it again. Pods may use an address after SetUplink succeeded with it.
//
// Errors: ErrNotSetUp, ErrNoLink until the kernel shows the link.
func (n *Node) SetUplink(ctx context.Context, uplink Uplink) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	_, err := n.setUplink(uplink)
	return err
}

// setUplink is SetUplink under setupMu. It returns what it changed.
func (n *Node) setUplink(uplink Uplink) (changed []string, err error) {
	s, err := n.established()
	if err != nil {
		return nil, err
	}
	fail := func(err error) ([]string, error) {
		return changed, fmt.Errorf("set up ENI %s: %w", uplink.ID, err)
	}
	u, err := chosen[VPC](s)
	if err != nil {
		return fail(err)
	}
	if err := uplink.Validate(); err != nil {
		return fail(err)
	}
	if err := n.uplinks.checkNumber(uplink); err != nil {
		return fail(err)
	}
	links, err := n.links()
	if err != nil {
		return fail(err)
	}
	link, err := linkByMAC(links, uplink.MAC)
	if err != nil {
		return fail(err)
	}
	// The rest is set up even if sysctls cannot be set.
	changed, sysctls := n.sysctls.set(s.config, uplink.ID, uplinkSysctls(u, link.Attrs().Name, uplink.Primary))
	if !uplink.Primary {
		did, err := secondaryENI{n.kernel, uplink, link, u}.set(s)
		changed = append(changed, did...)
		if err != nil {
			return fail(errors.Join(sysctls, err))
		}
	}
	if sysctls != nil {
		return fail(sysctls)
	}
	uplink.link = link.Attrs().Index
	n.uplinks.put(uplink)
	return changed, nil
}

// secondaryENI is a secondary ENI in one call of SetUplink, and its link.
type secondaryENI struct {
	*kernel
	Uplink
	link netlink.Link
	vpc  VPC
}

// set returns what it changed.
func (e secondaryENI) set(s *established) (changed []string, err error) {
	for _, step := range []func() ([]string, error){
		func() ([]string, error) { return e.setLink(s.mtu) },
		e.setAddresses,
		func() ([]string, error) {
			return e.routing.setTable(e.table(), uplinkRoutes(e.Uplink, e.link.Attrs().Index, e.vpc))
		},
		func() ([]string, error) { return e.setMap(s.tag) },
		func() ([]string, error) {
			return e.routing.setRules(isUplinkRule(e.Number), e.vpc.uplinkRules(e.Uplink))
		},
	} {
		did, err := step()
		changed = append(changed, did...)
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// UplinkLink has the interface indexes of the link of an ENI that was set up, and of the ENI's current link; 0: none.
type UplinkLink struct{ Set, Now int }

// UplinkLinks returns the links of all ENIs that SetUplink set up, by ID. A link that was detached and attached again
// is another one, and needs SetUplink again.
func (n *Node) UplinkLinks(ctx context.Context) (map[string]UplinkLink, error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	links, err := n.links()
	if err != nil {
		return nil, err
	}
	out := map[string]UplinkLink{}
	for _, e := range n.uplinks.list() {
		have := UplinkLink{Set: e.link}
		if l, err := linkByMAC(links, e.MAC); err == nil {
			have.Now = l.Attrs().Index
		}
		out[e.ID] = have
	}
	return out, nil
}

// uplinkSet are the uplinks that SetUplink set up.
type uplinkSet struct {
	mu   sync.Mutex
	byID map[string]Uplink // guarded by mu
}

// list lists them by number.
func (t *uplinkSet) list() []Uplink {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.SortedFunc(maps.Values(t.byID), func(a, b Uplink) int { return a.Number - b.Number })
}

func (t *uplinkSet) put(uplink Uplink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[uplink.ID] = uplink
}

// removeThat removes uplinks that a condition holds for, and returns their IDs.
func (t *uplinkSet) removeThat(holds func(Uplink) bool) (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.byID {
		if holds(e) {
			ids = append(ids, id)
			delete(t.byID, id)
		}
	}
	return ids
}

// checkNumber fails if another uplink has the number of one.
func (t *uplinkSet) checkNumber(uplink Uplink) error {
	for _, other := range t.list() {
		if other.ID != uplink.ID && !other.Primary && !uplink.Primary && other.Number == uplink.Number {
			return fmt.Errorf("Number %d: this device index is taken by ENI %s", uplink.Number, other.ID)
		}
	}
	return nil
}

// linkByMAC finds the link of an ENI. It ignores VLANs and other links on top of it, which have the same MAC address.
func linkByMAC(links []netlink.Link, mac net.HardwareAddr) (netlink.Link, error) {
	for _, l := range links {
		switch l.Type() {
		case "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "bridge", "bond", "team", "vrf":
			continue
		}
		if bytes.Equal(l.Attrs().HardwareAddr, mac) && !IsHostLinkName(l.Attrs().Name) {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", ErrNoLink, mac)
}

func (e secondaryENI) setLink(mtu int) (changed []string, err error) {
	a := e.link.Attrs()
	did, err := rtnl.Link{Name: a.Name, MTU: mtu}.Set(e.slow, a)
	if err != nil {
		return nil, err
	}
	if len(did) > 0 {
		changed = append(changed, fmt.Sprintf("MTU %d of %s", mtu, a.Name))
	}
	if a.Flags&net.FlagUp == 0 {
		if err := e.slow.LinkSetUp(e.link); err != nil {
			return changed, fmt.Errorf("set %s up: %w", a.Name, err)
		}
		changed = append(changed, a.Name+" up")
	}
	return changed, nil
}

// uplinkRoutes are all routes of an ENI's table: to the router, and by it to everywhere.
func uplinkRoutes(uplink Uplink, index int, u VPC) []netlink.Route {
	var gws []netip.Addr
	if uplink.hasIPv4() {
		gws = append(gws, uplink.gateway4())
	}
	if u.ipv6() && uplink.hasIPv6() {
		gws = append(gws, vpcGateway6)
	}
	var routes []netlink.Route
	for _, gw := range gws {
		routes = append(routes, netlink.Route{
			Family: rtnl.FamilyOf(gw), LinkIndex: index, Table: uplink.table(), Protocol: Protocol,
			Dst: rtnl.IPNet(rtnl.HostPrefix(gw)), Scope: rtnl.ScopeFor(gw, netlink.SCOPE_LINK),
		}, netlink.Route{
			Family: rtnl.FamilyOf(gw), LinkIndex: index, Table: uplink.table(), Protocol: Protocol,
			Dst: rtnl.IPNet(netip.PrefixFrom(rtnl.Unspecified(gw), 0)), Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		})
	}
	return routes
}

// RemoveUplink removes an ENI's rule, map entries and table, so that it can be detached. It ignores an unknown
// number. Call it again if it fails. The ENI's link and its address go with the detachment.
func (n *Node) RemoveUplink(ctx context.Context, number int) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	if number < 1 || number > MaxUplink {
		return fmt.Errorf("remove ENI: Number %d: want a device index of 1 to %d", number, MaxUplink)
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	return n.removeUplink(number)
}

// removeUplink is RemoveUplink under setupMu. It removes the rule first, so that packets of a leftover pod use main
// and not an incomplete table.
func (n *Node) removeUplink(number int) error {
	if _, err := n.routing.setRules(isUplinkRule(number), nil); err != nil {
		return fmt.Errorf("remove ENI %d: %w", number, err)
	}
	if err := n.clearUplinkMap(number); err != nil {
		return fmt.Errorf("remove ENI %d: %w", number, err)
	}
	if _, err := n.routing.setTable(UplinkTableBase+number, nil); err != nil {
		return fmt.Errorf("remove ENI %d: %w", number, err)
	}
	for _, id := range n.uplinks.removeThat(func(e Uplink) bool { return !e.Primary && e.Number == number }) {
		n.sysctls.forgetOwner(id)
	}
	return nil
}
