package routedvlan

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/plug"
)

// The table inet berth-branches has two maps from link names to the chains of branches: one for the incoming and one for
// the outgoing link. So the cost for a packet does not grow with the number of branches.

// filter manages the chains of branches in the node's namespace.
type filter struct {
	ns    netns.NsHandle
	marks marks
}

// zoneBase plus the VLAN ID is the connection tracking zone of a branch. Lower zones are left to
// other software.
const zoneBase = 0x6000

func table() *nftables.Table {
	return &nftables.Table{Name: datapath.BranchNftTable, Family: nftables.TableFamilyINet}
}

// direction is incoming or outgoing packets, with the base chain that dispatches to the chains of branches.
type direction struct {
	name string
	kind nftables.ChainType
	hook *nftables.ChainHook
	at   *nftables.ChainPriority
	key  expr.MetaKey
}

var (
	// entering runs before connection tracking and before the data path checks source addresses.
	entering = direction{"entering", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRef(*nftables.ChainPriorityRaw - 10), expr.MetaKeyIIFNAME}
	// leaving runs before other software translates source addresses. kube-proxy's masquerading
	// would choose the address of another link, and the VPC would drop the packet.
	leaving = direction{"leaving", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 10), expr.MetaKeyOIFNAME}
)

func (w direction) links() *nftables.Set {
	return &nftables.Set{Table: table(), Name: w.name + "_links", IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict}
}

// dispatch is the base chain, which jumps to the chain of the link.
func (w direction) dispatch() chain {
	return chain{w.name, "", w, []nft.Exprs{nft.Join(nft.Meta(w.key), nft.VerdictOf(w.links()))}}
}

// chain is an nftables chain of a branch.
type chain struct {
	name  string
	link  string // incoming or outgoing link of its packets
	way   direction
	rules []nft.Exprs
}

// The names of a branch's chains have the same suffix as its links.
const (
	fromPod  = "from_pod_"
	fromVLAN = "from_vlan_"
	toVLAN   = "to_vlan_"
)

func chainName(kind string, r plug.Ref) string { return kind + r.Short() }

// chains returns the chains of a branch.
func (f *filter) chains(b branch) []chain {
	short := strings.TrimPrefix(b.pod, datapath.LinkPrefix)
	in, out := chain{fromVLAN + short, b.vlan, entering, b.onlyPod()}, chain{fromPod + short, b.pod, entering, nil}
	to := chain{toVLAN + short, b.vlan, leaving, nil}
	for _, h := range b.hops { // keep the pod's own address, so that no later chain translates it
		to.rules = append(to.rules, nft.Join(nft.Family(h.family()), nft.SNATToSamePorts(h.addr)))
	}
	list := []chain{to}
	if b.enforcing != plug.Strict {
		return append(list, in, out)
	}
	zone := setZone(uint16(zoneBase + b.id))
	mark := func(value uint32) nft.Exprs { return nft.SetMark(f.marks.of(value)) }
	in.rules = append(in.rules, nft.Join(zone, mark(datapath.BranchIn)))
	out.rules = []nft.Exprs{nft.Join(zone, mark(datapath.BranchOut))}
	return append(list, in, out)
}

// setZone is the nftables statement "ct zone set N".
func setZone(n uint16) nft.Exprs {
	return nft.Exprs{
		&expr.Immediate{Register: nft.Register, Data: binaryutil.NativeEndian.PutUint16(n)},
		&expr.Ct{Key: expr.CtKeyZONE, Register: nft.Register, SourceRegister: true},
	}
}

// linkMulticast are link-local multicast addresses (RFC 4291, section 2.7).
var linkMulticast = netip.MustParsePrefix("ff02::/16")

// neighbourHops is the hop limit of neighbour discovery messages. It proves that no router forwarded them (RFC 4861,
// section 7.1).
const neighbourHops = 255

// hopLimit loads the hop limit of an IPv6 packet (RFC 8200, section 3).
func hopLimit() nft.Exprs { return nft.Network(7, 1) }

// onlyPod drops packets from the VLAN that are not for the pod, except IPv6 neighbour solicitations
// and advertisements between the node and the router. Router advertisements are dropped.
func (b branch) onlyPod() (rules []nft.Exprs) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if !b.has(family) {
			rules = append(rules, nft.Join(nft.Family(family), nft.Drop()))
		}
	}
	for _, h := range b.hops {
		if h.family() == unix.AF_INET6 {
			for _, to := range []netip.Prefix{datapath.LinkLocalNet, linkMulticast} {
				rules = append(rules, nft.Join(nft.DestinationIn(to), hopLimit(), nft.Is(neighbourHops), nft.ICMPv6Between(datapath.NeighbourSolicitation, datapath.NeighbourAdvertisement), nft.Accept()))
			}
		}
		rules = append(rules, nft.Join(nft.Family(h.family()), nft.Destination(h.family()), nft.IsNot(h.addr.AsSlice()...), nft.Count(), nft.Drop()))
	}
	return rules
}

// content is a table with this chain only, so that the table's tag identifies the content of the
// chain.
func (c chain) content() (nft.Table, error) {
	own := nft.Regular(c.name)
	if c.link == "" { // a base chain has no link
		own = nft.Base(c.way.name, c.way.kind, c.way.hook, c.way.at)
	}
	for _, r := range c.rules {
		own.Rules = append(own.Rules, nft.NewRule(c.name, r))
	}
	t := nft.Table{Family: nftables.TableFamilyINet, Name: datapath.BranchNftTable, Chains: []nft.Chain{own}}
	var err error
	t.Tag, err = t.Fingerprint()
	return t, err
}

func (c chain) element() []nftables.SetElement {
	return []nftables.SetElement{{Key: nft.LinkName(c.link), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: c.name}}}
}

func (f *filter) conn() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(int(f.ns)))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// set creates the chains of a branch in one transaction. It does not rewrite chains that are
// correct, because the kernel waits for packets in flight on each change of rules.
func (f *filter) set(b branch) error {
	conn, err := f.conn()
	if err != nil {
		return err
	}
	missing, err := f.missing(conn, b)
	if err != nil || len(missing) == 0 {
		return err
	}
	conn.AddTable(table())
	for _, w := range []direction{entering, leaving} {
		if err := nft.AddSet(conn, w.links()); err != nil {
			return fmt.Errorf("create the nftables map %s: %w", w.links().Name, err)
		}
	}
	for _, c := range missing {
		if err := c.add(conn); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("create the nftables chains of %s: %w", b.pod, err)
	}
	return nil
}

// add queues the creation of a chain and of its map element.
func (c chain) add(conn *nftables.Conn) error {
	content, err := c.content()
	if err != nil {
		return err
	}
	content.Refill(conn, content.Chains...)
	if c.link == "" {
		return nil
	}
	if err := conn.SetAddElements(c.way.links(), c.element()); err != nil {
		return fmt.Errorf("add %s to the nftables map, with chain %s: %w", c.link, c.name, err)
	}
	return nil
}

// missing lists the missing or changed chains of a branch, the shared chains first.
func (f *filter) missing(conn *nftables.Conn, b branch) (missing []chain, err error) {
	have, err := look(conn)
	if err != nil {
		return nil, err
	}
	for _, c := range append([]chain{entering.dispatch(), leaving.dispatch()}, f.chains(b)...) {
		alike, err := have.has(conn, c)
		if err != nil {
			return nil, err
		}
		if !alike {
			missing = append(missing, c)
		}
	}
	return missing, nil
}

// content is the observed content of the table.
type content struct {
	chains map[string]*nftables.Chain
	linked map[string]bool // map elements that exist, by chain.at
}

// at is the map and key of a chain's element.
func (c chain) at() string { return c.way.name + " " + c.link }

func look(conn *nftables.Conn) (content, error) {
	have := content{map[string]*nftables.Chain{}, map[string]bool{}}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return have, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, c := range chains {
		if c.Table.Name == datapath.BranchNftTable {
			have.chains[c.Name] = c
		}
	}
	for _, w := range []direction{entering, leaving} {
		if have.chains[w.name] == nil {
			continue // then its map does not exist either
		}
		elements, err := conn.GetSetElements(w.links())
		if err != nil {
			return have, fmt.Errorf("read the nftables map %s: %w", w.links().Name, err)
		}
		for _, e := range elements {
			have.linked[chain{link: string(bytes.TrimRight(e.Key, "\x00")), way: w}.at()] = true
		}
	}
	return have, nil
}

// has reports whether a chain and its map element exist and are correct.
func (have content) has(conn *nftables.Conn, c chain) (bool, error) {
	there := have.chains[c.name]
	if there == nil || c.link != "" && !have.linked[c.at()] {
		return false, nil
	}
	content, err := c.content()
	if err != nil {
		return false, err
	}
	return content.Has(conn, content.Chains[0]), nil
}

// remove removes the chains of a port.
func (f *filter) remove(r plug.Ref) error {
	conn, err := f.conn()
	if err != nil {
		return err
	}
	have, err := look(conn)
	if err != nil {
		return err
	}
	for name, c := range map[string]chain{
		chainName(fromPod, r):  {link: LinkName(r), way: entering},
		chainName(fromVLAN, r): {link: r.VLANLink(), way: entering},
		chainName(toVLAN, r):   {link: r.VLANLink(), way: leaving},
	} {
		there := have.chains[name]
		if there == nil {
			continue
		}
		if c.name = name; have.linked[c.at()] {
			if err := conn.SetDeleteElements(c.way.links(), c.element()); err != nil {
				return fmt.Errorf("remove chain %s from the nftables map: %w", name, err)
			}
		}
		conn.FlushChain(there)
		conn.DelChain(there)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove the nftables chains of %s: %w", LinkName(r), err)
	}
	return nil
}

// check adds missing or changed chains of a branch to the differences.
func (f *filter) check(b branch, found *plug.Differences) error {
	conn, err := f.conn()
	if err != nil {
		return err
	}
	missing, err := f.missing(conn, b)
	for _, c := range missing {
		found.Add("chain %s of the nftables table %s is missing or changed", c.name, datapath.BranchNftTable)
	}
	return err
}
