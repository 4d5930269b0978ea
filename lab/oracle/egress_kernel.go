package oracle

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/lab/run/node"
)

// Numbers of docs/guides/egress-gateways.md, "Routing in clients", including how a gateway's mark and table derive from its
// number.
const (
	fouPort             = 5555
	specificTable       = 117
	defaultTable        = 118
	gatewayTables       = 11700 // and up
	gatewayMask         = 0x00ff0000
	ownWayMark          = 0x01000000
	overhead4           = 28 // bytes of IPv4 and UDP
	overhead6           = 48
	clientsTable        = 117 // of gateways
	viaMetric, noMetric = 1024, 4096
)

// clusterNetworks are excluded from egress, as by berthd's default.
var clusterNetworks = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fc00::/7"),
}

// checkNode compares the pods of a node and berthd's records with the desired state.
func (v *egressView) checkNode(n *node.Node) {
	r, err := readRecords(n.StateDir())
	if err != nil {
		v.wrong("node %s: read its records: %w", n.Name, err)
		return
	}
	records := map[string]attachment.Record{}
	for _, rec := range r.attachments {
		records[rec.Key.ContainerID] = rec
	}
	for _, p := range n.Pods() {
		o := v.objects[p.UID]
		if o == nil {
			v.wrong("pod %s/%s is running but has no object", n.Name, p.Name)
			continue
		}
		c := podCheck{egressView: v, name: fmt.Sprintf("pod %s on %s", key(o), n.Name), pod: p, uses: v.uses[p.UID]}
		if c.state, err = observeEgress(p.Netns()); err != nil {
			v.wrong("%s: %w", c.name, err)
			continue
		}
		c.record(records[p.ContainerID])
		if of := gatewayOf(o); of != "" && v.egresses[of] != nil {
			c.gateway(of)
		} else {
			c.client()
		}
	}
}

// podCheck verifies one pod.
type podCheck struct {
	*egressView
	name  string
	pod   *node.Pod
	uses  []*v1alpha1.Egress
	state egressState
}

func (c *podCheck) wrong(format string, args ...any) { c.egressView.wrong(c.name+": "+format, args...) }

// same compares two lists regardless of order.
func (c *podCheck) same(what string, have, want []string) {
	left := map[string]int{}
	for _, h := range have {
		left[h]++
	}
	for _, w := range want {
		left[w]--
	}
	for _, text := range slices.Sorted(maps.Keys(left)) {
		switch n := left[text]; {
		case n > 0:
			c.wrong("%s %q exists and should not", what, text)
		case n < 0:
			c.wrong("%s %q is missing", what, text)
		}
	}
}

// record verifies berthd's record.
func (c *podCheck) record(r attachment.Record) {
	var have, want []string
	if r.Egress != nil {
		if r.Egress.State != attachment.EgressSetUp {
			c.wrong("egress state in its record is %s", r.Egress.State)
		}
		for _, e := range r.Egress.Egresses {
			var gateways []string
			for _, g := range e.Gateways {
				gateways = append(gateways, fmt.Sprint(g.UID, g.Addresses, g.Ending))
			}
			slices.Sort(gateways)
			have = append(have, fmt.Sprint(e.Namespace, "/", e.Name, e.UID, e.Destinations, gateways, e.Service, e.SourcePortAuto, e.OriginatingOnly))
		}
	}
	for _, e := range c.uses {
		var gateways []string
		for _, g := range e.Status.Gateways {
			gateways = append(gateways, fmt.Sprint(g.UID, g.Addresses, g.Ending))
		}
		slices.Sort(gateways)
		var service []netip.Addr
		if toService(e) {
			service = parsed(e.Status.ServiceIPs)
		}
		want = append(want, fmt.Sprint(e.Namespace, "/", e.Name, e.UID, destinations(e), gateways, service, e.Spec.FouSourcePortAuto, e.Spec.OriginatingOnly))
	}
	c.same("Egress of its record", have, want)
}

func toService(e *v1alpha1.Egress) bool { return e.Spec.TunnelTo == v1alpha1.TunnelToService }

func parsed(texts []string) (out []netip.Addr) {
	for _, t := range texts {
		if a, err := netip.ParseAddr(t); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// ofFamily returns the first address of a family; the zero address if there is none.
func ofFamily(addrs []netip.Addr, six bool) netip.Addr {
	for _, a := range addrs {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}

// ends returns the remote addresses of the tunnels of a family to an Egress: its gateways or its Service.
func ends(e *v1alpha1.Egress, six bool) (out []netip.Addr) {
	if toService(e) {
		if a := ofFamily(parsed(e.Status.ServiceIPs), six); a.IsValid() {
			out = append(out, a)
		}
		return out
	}
	return gatewayAddrs(e, six)
}

func gatewayAddrs(e *v1alpha1.Egress, six bool) (out []netip.Addr) {
	for _, g := range e.Status.Gateways {
		if a := ofFamily(parsed(g.Addresses), six); a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// client verifies a pod that is not a gateway.
func (c *podCheck) client() {
	if len(c.uses) == 0 {
		c.same("tunnel", values(c.state.links), nil)
		c.same("FoU port", c.state.ports, nil)
		c.same("rule", c.state.rules, nil)
		c.same("route", texts(c.state.routes), nil)
		c.same("nftables table", c.state.tables, nil)
		return
	}
	c.same("nftables table", c.state.tables, []string{tunnel.Table})
	auto := slices.ContainsFunc(c.uses, func(e *v1alpha1.Egress) bool { return e.Spec.FouSourcePortAuto })
	source := uint16(fouPort)
	if auto {
		source = 0
	}
	c.tunnels(source)
	if ofFamily(c.pod.Addrs, false).IsValid() && !c.state.loose {
		c.wrong("reverse path filtering of %s is not loose", tunnel.Link4)
	}
	var rules []string
	for _, six := range []bool{false, true} {
		own := ofFamily(c.pod.Addrs, six)
		if !own.IsValid() {
			continue
		}
		ids := c.routes(own, six)
		rules = append(rules, c.rules(ids, six)...)
		c.filter(ids, six)
	}
	c.same("rule", c.state.rules, rules)
}

// tunnels verifies tunnel devices and FoU ports.
func (c *podCheck) tunnels(source uint16) {
	var links, ports []string
	for _, a := range c.pod.Addrs {
		if a.Is4() {
			links = append(links, tunnelText("ipip", a, source, fouPort, c.state.mtu-overhead4, true))
			ports = append(ports, portText(fouPort, false, unix.IPPROTO_IPIP))
		} else {
			links = append(links, tunnelText("ip6tnl", a, source, fouPort, c.state.mtu-overhead6, true))
			ports = append(ports, portText(fouPort, true, unix.IPPROTO_IPV6))
		}
	}
	c.same("tunnel", values(c.state.links), links)
	c.same("FoU port", c.state.ports, ports)
}

func values(m map[string]string) []string { return slices.Collect(maps.Values(m)) }

func texts(routes []egressRoute) (out []string) {
	for _, r := range routes {
		out = append(out, r.String())
	}
	return out
}

// numbered is a gateway with the number that the pod assigned to it.
type numbered map[int]netip.Addr

// routes verifies the routes of a family and returns the numbers of gateways.
func (c *podCheck) routes(own netip.Addr, six bool) numbered {
	link := tunnel.Link4
	if six {
		link = tunnel.Link6
	}
	ids := numbered{}
	left := slices.DeleteFunc(slices.Clone(c.state.routes), func(r egressRoute) bool { return r.dst.Addr().Is6() != six })
	take := func(is func(egressRoute) bool) bool {
		i := slices.IndexFunc(left, is)
		if i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		return i >= 0
	}
	var want []netip.Addr // of gateways' tables
	for _, e := range c.uses {
		to := ends(e, six)
		if toService(e) && len(e.Status.Gateways) == 0 {
			to = nil
		}
		ofFamily := slices.DeleteFunc(destinations(e), func(d netip.Prefix) bool { return d.Addr().Is6() != six })
		for _, d := range ofFamily {
			c.destination(e, d, to, func(r egressRoute) bool { return r.src == own && r.link == link }, take)
		}
		if len(ofFamily) > 0 && !toService(e) {
			want = append(want, to...)
		}
	}
	for _, a := range want {
		is := func(r egressRoute) bool {
			return r.table > gatewayTables && r.table <= gatewayTables+attachment.MaxEgressGateways && r.dst.Bits() == 0 && r.via == a && r.src == own && r.link == link
		}
		if i := slices.IndexFunc(left, is); i >= 0 {
			ids[left[i].table-gatewayTables] = a
		}
		if !take(is) {
			c.wrong("no table leads to gateway %s", a)
		}
	}
	for _, r := range left {
		c.wrong("%s exists and should not", r)
	}
	return ids
}

// destination verifies the routes to a destination of an Egress, which lead to any of its tunnels' ends. by reports
// whether a route uses the tunnel; take removes an existing route.
func (c *podCheck) destination(e *v1alpha1.Egress, d netip.Prefix, to []netip.Addr, by func(egressRoute) bool, take func(func(egressRoute) bool) bool) {
	table := specificTable
	if d.Bits() == 0 {
		table = defaultTable
	}
	there := func(r egressRoute) bool { return r.dst == d && r.table == table }
	if !take(func(r egressRoute) bool { return r.unreachable && there(r) && r.metric == noMetric }) {
		c.wrong("no unreachable route for %s of Egress %s, which has no gateway (table %d)", d, key(e), table)
	}
	leads := func(r egressRoute) bool {
		in := slices.Contains(to, r.via) || len(to) == 0 && e.Spec.OriginatingOnly && isDummy(r.via)
		return in && by(r) && there(r) && r.metric == viaMetric
	}
	if (len(to) > 0 || e.Spec.OriginatingOnly) && !take(leads) {
		c.wrong("no route leads to %s through Egress %s, %v (table %d)", d, key(e), to, table)
	}
}

// isDummy reports whether an address belongs to no host (RFC 7600, section 4.8; RFC 6666).
func isDummy(a netip.Addr) bool {
	return a == netip.MustParseAddr("192.0.0.8") || a == netip.MustParseAddr("100::1")
}

// rules returns the desired policy routing rules of a family.
func (c *podCheck) rules(ids numbered, six bool) (want []string) {
	word, near := "IPv4", []string{"169.254.0.0/16", "224.0.0.0/4"}
	if six {
		word, near = "IPv6", []string{"fe80::/10"}
	}
	add := func(priority int, what string, table int) {
		want = append(want, ruleText(priority, strings.TrimSpace(word+" "+what), table))
	}
	if slices.ContainsFunc(c.uses, func(e *v1alpha1.Egress) bool { return e.Spec.OriginatingOnly }) {
		add(1795, markText(ownWayMark, ownWayMark), unix.RT_TABLE_MAIN)
	}
	for _, n := range near {
		add(1800, "to "+n, unix.RT_TABLE_MAIN)
	}
	outer := map[netip.Addr]bool{}
	for _, e := range c.uses {
		for _, a := range ends(e, six) {
			if _, by := c.way(a); by != nil {
				outer[a] = true
			}
		}
	}
	for a := range outer {
		add(1810, "to "+netip.PrefixFrom(a, a.BitLen()).String(), unix.RT_TABLE_MAIN)
	}
	for id := range ids {
		add(1850, markText(uint32(id)<<16, gatewayMask), gatewayTables+id)
	}
	add(1900, "", specificTable)
	i := 0
	for _, n := range clusterNetworks {
		if n.Addr().Is6() == six {
			add(2000+i, "to "+n.String(), unix.RT_TABLE_MAIN)
			i++
		}
	}
	add(2100, "", defaultTable)
	return want
}

// way returns the destination and the Egress through which a pod reaches an address, or none if it reaches it directly.
func (c *podCheck) way(a netip.Addr) (netip.Prefix, *v1alpha1.Egress) { return wayOf(c.uses, a) }

func wayOf(uses []*v1alpha1.Egress, a netip.Addr) (netip.Prefix, *v1alpha1.Egress) {
	best := netip.Prefix{}
	var by *v1alpha1.Egress
	inCluster := slices.ContainsFunc(clusterNetworks, func(p netip.Prefix) bool { return p.Contains(a) })
	for _, e := range uses {
		for _, d := range destinations(e) {
			if d.Contains(a) && (d.Bits() > 0 || !inCluster) && (by == nil || d.Bits() > best.Bits()) {
				best, by = d, e
			}
		}
	}
	return best, by
}

// filter verifies who may send to the pod's tunnels, and which gateways new connections may use.
func (c *podCheck) filter(ids numbered, six bool) {
	digit := "4"
	if six {
		digit = "6"
	}
	senders := map[netip.Addr]bool{}
	answers := false
	for _, e := range c.uses {
		for _, a := range append(ends(e, six), gatewayAddrs(e, six)...) {
			senders[a] = true
		}
		some := slices.ContainsFunc(destinations(e), func(d netip.Prefix) bool { return d.Addr().Is6() == six })
		answers = answers || e.Spec.OriginatingOnly && some
	}
	if have, want := c.state.addresses("gateways"+digit), slices.SortedFunc(maps.Keys(senders), netip.Addr.Compare); !slices.Equal(have, want) {
		c.wrong("tunneled IPv%s packets are accepted from %v, want %v", digit, have, want)
	}
	if _, has := c.state.sets["answering"+digit]; has != answers {
		c.wrong("IPv%s replies are excluded from egress: %t, want %t", digit, has, answers)
	}
	for _, e := range c.uses {
		all := ends(e, six)
		if toService(e) || len(all) == 0 || !slices.ContainsFunc(destinations(e), func(d netip.Prefix) bool { return d.Addr().Is6() == six }) {
			continue
		}
		for _, a := range all {
			chosen := c.chosen(a, ids, "choices"+digit)
			want := all
			if e.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && len(chosen) == 1 && slices.Contains(all, chosen[0]) {
				want = chosen
			}
			want = slices.SortedFunc(slices.Values(want), netip.Addr.Compare)
			if !slices.Equal(chosen, want) {
				c.wrong("new connections through Egress %s (affinity %s) from %s use gateways %v of %v", key(e), e.Spec.SessionAffinity, a, chosen, all)
			}
		}
	}
}

// chosen returns the gateways that a new connection whose route leads to a may use.
func (c *podCheck) chosen(a netip.Addr, ids numbered, choices string) (out []netip.Addr) {
	i := slices.IndexFunc(c.state.sets[choices], func(e nftables.SetElement) bool {
		to, _ := netip.AddrFromSlice(e.Key)
		return to == a
	})
	if i < 0 {
		return nil
	}
	for _, to := range c.state.leads[verdictChain(c.state.sets[choices][i].Val)] {
		var id int
		if _, err := fmt.Sscanf(to, "gateway-%d", &id); err == nil {
			out = append(out, ids[id])
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// gateway verifies a gateway of an Egress.
func (c *podCheck) gateway(of string) {
	e := c.egresses[of]
	if len(c.uses) > 0 {
		c.wrong("gateway uses %d Egresses", len(c.uses))
	}
	c.same("nftables table", c.state.tables, []string{tunnel.Table})
	c.tunnels(0)
	var rules, routes []string
	for _, a := range c.pod.Addrs {
		word, link, digit := "IPv4", tunnel.Link4, "4"
		if a.Is6() {
			word, link, digit = "IPv6", tunnel.Link6, "6"
		}
		rules = append(rules, ruleText(1900, word+" in lo not true", clientsTable), ruleText(1900, word+" "+markText(117, 0xffffffff), clientsTable))
		want := map[netip.Addr]string{}
		for uid, addrs := range c.served[of] {
			if own := ofFamily(addrs, a.Is6()); own.IsValid() {
				want[own] = uid
				routes = append(routes, egressRoute{table: clientsTable, dst: netip.PrefixFrom(own, own.BitLen()), link: link}.String())
			}
		}
		have := map[netip.Addr]string{}
		for _, el := range c.state.sets["clients-"+digit] {
			outer, _ := netip.AddrFromSlice(el.Key[:len(el.Key)/2])
			inner, _ := netip.AddrFromSlice(el.Key[len(el.Key)/2:])
			if have[outer] = el.Comment; outer != inner {
				c.wrong("%s may send from %s through its tunnel", outer, inner)
			}
		}
		if !maps.Equal(have, want) {
			c.wrong("gateway serves %v, want %v", have, want)
		}
		c.destinations(e, a.Is6(), "destinations-"+digit)
	}
	c.same("rule", c.state.rules, rules)
	c.same("route", texts(c.state.routes), routes)
	for _, chain := range []string{"receive", "forward", "translate", "input"} {
		if _, ok := c.state.leads[chain]; !ok {
			c.wrong("nftables chain %s is missing", chain)
		}
	}
}

// destinations verifies the destinations that a gateway allows.
func (c *podCheck) destinations(e *v1alpha1.Egress, six bool, set string) {
	var want, have []string
	all := destinations(e)
	for _, d := range all {
		within := slices.ContainsFunc(all, func(o netip.Prefix) bool { return o.Bits() < d.Bits() && o.Contains(d.Addr()) })
		if d.Addr().Is6() == six && !within {
			want = append(want, d.Addr().String())
		}
	}
	for _, a := range c.state.addresses(set) {
		have = append(have, a.String())
	}
	// The kernel merges adjacent networks, so only their first addresses are compared; the gateway's own tests cover
	// the last ones.
	if len(have) > len(want) || len(want) > 0 && len(have) == 0 || slices.ContainsFunc(have, func(h string) bool { return !slices.Contains(want, h) }) {
		c.wrong("first addresses of the allowed destinations are %v, want %v", have, want)
	}
}
