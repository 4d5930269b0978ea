package fabric

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/lab/cloud/vpc"
)

// ruleset is the router's packet filter in nftables:
//
//	map from  { iif : jump from-ENI }   prerouting, before connection tracking:
//	          the source must belong to the ENI, the destination to some owner
//	map out   { iif : jump out-ENI }    a new connection leaving the ENI: internet
//	          gateway and the egress rules of its groups; returns if allowed
//	map in    { oif : jump in-ENI }     a new connection to the ENI: the ingress rules
//	set sg-…  { link, … }               the links of a group's ENIs: since sources are
//	          checked, the incoming link of a packet identifies its groups
//	set public { address, … }           primary addresses of primary ENIs, the only ones
//	          with a public address at the internet gateway
//
// Named counters per ENI and cause count dropped packets. They survive changes of the rules.
type ruleset struct {
	table         *nftables.Table
	from, out, in *nftables.Set
	public        *nftables.Set
	groups        map[string]*nftables.Set
	members       map[string]map[string]bool // group ID to links, as in the kernel
	publicOf      map[string]string          // link to its address in public, 4 raw bytes
	sets          uint32                     // number of sets created so far
}

var accept, drop = nftables.ChainPolicyAccept, nftables.ChainPolicyDrop

// install creates the part of the ruleset that does not depend on ENIs. With egressOnly, IPv6 allows no connections from
// the internet.
func (r *ruleset) install(c *nftables.Conn, egressOnly bool) error {
	r.groups, r.members, r.publicOf = map[string]*nftables.Set{}, map[string]map[string]bool{}, map[string]string{}
	r.table = c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "vpclab"})
	for _, m := range []struct {
		set  **nftables.Set
		name string
	}{{&r.from, "from"}, {&r.out, "out"}, {&r.in, "in"}} {
		*m.set = r.newSet(m.name, nftables.TypeIFName)
		(*m.set).IsMap, (*m.set).DataType = true, nftables.TypeVerdict
		if err := c.AddSet(*m.set, nil); err != nil {
			return fmt.Errorf("add map %s: %w", m.name, err)
		}
	}
	r.public = r.newSet("public", nftables.TypeIPAddr)
	if err := c.AddSet(r.public, nil); err != nil {
		return fmt.Errorf("add set public: %w", err)
	}
	c.AddObj(r.counter(gatewayCounter, Gateway))
	preroute := c.AddChain(&nftables.Chain{
		Table: r.table, Name: "prerouting", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw, Policy: &accept,
	})
	r.addRule(c, preroute, vmap(expr.MetaKeyIIFNAME, r.from))

	// The EC2 API is on the internet: only packets with a public address reach it, and those of programs beside it.
	input := c.AddChain(&nftables.Chain{
		Table: r.table, Name: "input", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &accept,
	})
	r.addRule(c, input, link(expr.MetaKeyIIFNAME, "lo"), verdict(expr.VerdictAccept))
	r.addRule(c, input, ipv4(), daddr4(), equal(EC2Endpoint.AsSlice()), saddr4(), notIn(r.public),
		r.count(gatewayCounter, Gateway), verdict(expr.VerdictDrop))

	forward := c.AddChain(&nftables.Chain{
		Table: r.table, Name: "forward", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	r.addRule(c, forward, established(), verdict(expr.VerdictAccept))
	r.addRule(c, forward, vmap(expr.MetaKeyIIFNAME, r.out))
	r.addRule(c, forward, link(expr.MetaKeyIIFNAME, internetLink), ipv4(), daddr4(), notIn(r.public),
		r.count(gatewayCounter, Gateway), verdict(expr.VerdictDrop))
	if egressOnly {
		r.addRule(c, forward, link(expr.MetaKeyIIFNAME, internetLink), ipv6(), r.count(gatewayCounter, Gateway), verdict(expr.VerdictDrop))
	}
	r.addRule(c, forward, vmap(expr.MetaKeyOIFNAME, r.in))
	// Nothing is forwarded between the two gateways: the remaining packets must come from an ENI.
	for _, outside := range []string{internetLink, onPremLink} {
		r.addRule(c, forward, link(expr.MetaKeyIIFNAME, outside), verdict(expr.VerdictDrop))
	}
	for _, outside := range []string{internetLink, onPremLink} {
		r.addRule(c, forward, link(expr.MetaKeyOIFNAME, outside), verdict(expr.VerdictAccept))
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("install the router's ruleset: %w", err)
	}
	return nil
}

// newSet names and numbers a set. The library would use a package variable, which concurrent fabrics cannot share.
func (r *ruleset) newSet(name string, key nftables.SetDatatype) *nftables.Set {
	r.sets++
	return &nftables.Set{Table: r.table, ID: r.sets, Name: name, KeyType: key}
}

func (r *ruleset) addRule(c *nftables.Conn, chain *nftables.Chain, parts ...any) {
	c.AddRule(&nftables.Rule{Table: r.table, Chain: chain, Exprs: flatten(parts)})
}

// eniChains are the names of an ENI's chains.
func eniChains(p *plugged) (from, out, in string) {
	return "from-" + p.eni.ID, "out-" + p.eni.ID, "in-" + p.eni.ID
}

// add creates an ENI's chains and directs its link's packets to them.
func (r *ruleset) add(c *nftables.Conn, p *plugged, groups map[string]vpc.SecurityGroup) error {
	for _, cause := range eniCauses {
		c.AddObj(r.counter(p.eni.ID, cause))
	}
	if err := r.fill(c, p, groups); err != nil {
		return err
	}
	from, out, in := eniChains(p)
	for _, m := range []struct {
		set   *nftables.Set
		chain string
	}{{r.from, from}, {r.out, out}, {r.in, in}} {
		el := nftables.SetElement{Key: ifname(p.link), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: m.chain}}
		if err := c.SetAddElements(m.set, []nftables.SetElement{el}); err != nil {
			return fmt.Errorf("add %s to map %s: %w", p.link, m.set.Name, err)
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add rules of %s: %w", p.eni.ID, err)
	}
	return nil
}

// update rewrites an ENI's chains in one transaction, for its current addresses, groups and their rules.
func (r *ruleset) update(c *nftables.Conn, p *plugged, groups map[string]vpc.SecurityGroup) error {
	from, out, in := eniChains(p)
	for _, name := range []string{from, out, in} {
		c.FlushChain(&nftables.Chain{Table: r.table, Name: name})
	}
	if err := r.fill(c, p, groups); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("update rules of %s: %w", p.eni.ID, err)
	}
	return nil
}

// fill writes an ENI's chains and updates its set memberships.
func (r *ruleset) fill(c *nftables.Conn, p *plugged, groups map[string]vpc.SecurityGroup) error {
	if err := r.join(c, p); err != nil {
		return err
	}
	fromName, outName, inName := eniChains(p)

	from := c.AddChain(&nftables.Chain{Table: r.table, Name: fromName})
	// Neighbour discovery and other link-local traffic stays between the ENI and its router.
	r.addRule(c, from, ipv6(), daddr6Multicast(), verdict(expr.VerdictReturn))
	if p.eni.SourceDestCheck {
		r.addRule(c, from, fibMissing(fibSource), r.count(p.eni.ID, Source), verdict(expr.VerdictDrop))
	}
	r.addRule(c, from, fibLocal(), verdict(expr.VerdictReturn))
	r.addRule(c, from, fibMissing(fibDestination), r.count(p.eni.ID, Destination), verdict(expr.VerdictDrop))

	out := c.AddChain(&nftables.Chain{Table: r.table, Name: outName})
	r.addRule(c, out, link(expr.MetaKeyOIFNAME, internetLink), ipv4(), saddr4(), notIn(r.public),
		r.count(p.eni.ID, Gateway), verdict(expr.VerdictDrop))
	in := c.AddChain(&nftables.Chain{Table: r.table, Name: inName})
	for _, id := range p.eni.Groups {
		for _, rule := range groups[id].Egress {
			if err := r.addGroupRule(c, out, rule, egress); err != nil {
				return fmt.Errorf("egress rule of %s: %w", id, err)
			}
		}
		for _, rule := range groups[id].Ingress {
			if err := r.addGroupRule(c, in, rule, ingress); err != nil {
				return fmt.Errorf("ingress rule of %s: %w", id, err)
			}
		}
	}
	r.addRule(c, out, r.count(p.eni.ID, Egress), verdict(expr.VerdictDrop))
	r.addRule(c, in, r.count(p.eni.ID, Ingress), verdict(expr.VerdictDrop))
	return nil
}

// remove removes an ENI's chains, elements and counters.
func (r *ruleset) remove(c *nftables.Conn, p *plugged) error {
	if r.table == nil {
		return nil
	}
	from, out, in := eniChains(p)
	for _, m := range []*nftables.Set{r.from, r.out, r.in} {
		if err := c.SetDeleteElements(m, []nftables.SetElement{{Key: ifname(p.link)}}); err != nil {
			return err
		}
	}
	if err := r.leave(c, p); err != nil {
		return err
	}
	for _, name := range []string{from, out, in} {
		chain := &nftables.Chain{Table: r.table, Name: name}
		c.FlushChain(chain)
		c.DelChain(chain)
	}
	for _, cause := range eniCauses {
		c.DeleteObject(r.counter(p.eni.ID, cause))
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove rules of %s: %w", p.eni.ID, err)
	}
	return nil
}

// ifname returns a link name in the format of nftables.
func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func be16(v int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(v)) }
