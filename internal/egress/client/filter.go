package client

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/nft"
	"github.com/berthnet/berth/internal/egress"
)

// filter is the wanted content of Berth's nftables table in a pod, as data.
type filter struct {
	table  *nftables.Table
	chains []chain
	sets   []set
	// tag is a hash of all of it. Every rule carries it in its comment, so that the kernel's
	// content can be compared without decoding rules.
	tag string
}

type chain struct {
	nftables.Chain // Table unset
	rules          []filterRule
}

type filterRule struct {
	comment string
	exprs   nft.Exprs
}

type set struct {
	nftables.Set // Table unset
	elements     []nftables.SetElement
}

// newFilter writes the table.
//
//	raw, sent   what tunnels receive and send is not tracked: its connections are those inside
//	received    FoU is taken from the gateways only
//	tunnelled   what comes out of a tunnel belongs to a connection that went out, and packets that
//	            the pod passes on for others keep their gateway
//	output      each connection's gateway
//	forward     that of connections that the pod passes on
//	gateway-N   a connection and its packet are given gateway N
//	choose-…    a new connection is given one of an Egress's gateways
//	refuse      there is none
func newFilter(s Setup, l loosened) (filter, error) {
	s = s.sorted()
	f := filter{table: &nftables.Table{Family: nftables.TableFamilyINet, Name: egress.Table}}
	for _, family := range s.families() {
		f.addSenders(s, family)
	}
	f.add(base("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, s.eachFamily(func(family int) []filterRule {
		return []filterRule{{"tunnels are not tracked", nft.Join(nft.UDPTo(s.Port), nft.Family(family), nft.Source(family), in(senders(family)), nft.Notrack())}}
	})...))
	f.add(base("sent", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityRaw, s.eachFamily(func(family int) []filterRule {
		return []filterRule{{"nor is the inner packet's mark theirs",
			nft.Join(nft.UDPTo(s.Port), nft.Family(family), nft.Destination(family), in(senders(family)), nft.SetMark(0, markGateway|markOwnWay), nft.Notrack())}}
	})...))
	f.addReceived(s)
	f.addChoice(s, l)
	var err error
	f.tag, err = f.fingerprint()
	return f, err
}

func base(name string, kind nftables.ChainType, hook *nftables.ChainHook, at *nftables.ChainPriority, rules ...filterRule) chain {
	return chain{nftables.Chain{Name: name, Type: kind, Hooknum: hook, Priority: at}, rules}
}

func (f *filter) add(c chain) { f.chains = append(f.chains, c) }

func (s Setup) eachFamily(rules func(family int) []filterRule) []filterRule {
	var list []filterRule
	for _, family := range s.families() {
		list = append(list, rules(family)...)
	}
	return list
}

func familyDigit(family int) string {
	if family == unix.AF_INET6 {
		return "6"
	}
	return "4"
}

// Names of sets, by family.
func senders(family int) string   { return "gateways" + familyDigit(family) }
func members(family int) string   { return "members" + familyDigit(family) }
func choices(family int) string   { return "choices" + familyDigit(family) }
func atHome(family int) string    { return "home" + familyDigit(family) }
func answering(family int) string { return "answering" + familyDigit(family) }

const pins = "pins"

func gatewayChain(id int) string { return fmt.Sprintf("gateway-%d", id) }

// refuse is a chain, and no Egress's.
const refuse = "refuse"

func (f *filter) addSet(name string, key nftables.SetDatatype, addrs ...[]byte) {
	s := set{Set: nftables.Set{Name: name, KeyType: key}}
	for _, a := range sortedUnique(addrs) {
		s.elements = append(s.elements, nftables.SetElement{Key: a})
	}
	f.sets = append(f.sets, s)
}

func sortedUnique(list [][]byte) [][]byte {
	slices.SortFunc(list, slices.Compare)
	return slices.CompactFunc(list, slices.Equal)
}

// addMap adds a verdict map, which leads to chains.
func (f *filter) addMap(name string, key nftables.SetDatatype, to []leap) {
	s := set{Set: nftables.Set{Name: name, KeyType: key, DataType: nftables.TypeVerdict, IsMap: true}}
	if key == nftables.TypeMark {
		s.KeyByteOrder = binaryutil.NativeEndian
	}
	slices.SortFunc(to, func(a, b leap) int { return slices.Compare(a.key, b.key) })
	to = slices.CompactFunc(to, func(a, b leap) bool { return slices.Equal(a.key, b.key) })
	for _, l := range to {
		s.elements = append(s.elements, nftables.SetElement{Key: l.key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: l.chain}})
	}
	f.sets = append(f.sets, s)
}

type leap struct {
	key   []byte
	chain string
}

// addSenders notes all from whom FoU of a family is taken.
func (f *filter) addSenders(s Setup, family int) {
	var list []netip.Addr
	for _, e := range s.Egresses {
		list = append(list, of(e.Service, family))
		for _, g := range e.Gateways {
			list = append(list, of(g.Addrs, family))
		}
	}
	f.addSet(senders(family), nft.AddressType(family), keys(list...)...)
}

// notFromGateway, with the port behind it, is the comment by which an Apply knows the port of the
// one before.
const notFromGateway = "not from a gateway: UDP port "

// portIn is the port in the summary of a filter, 0 if it has none.
func portIn(summary string) uint16 {
	_, rest, _ := strings.Cut(summary, notFromGateway)
	number, _, _ := strings.Cut(rest, " ")
	port, _ := strconv.ParseUint(number, 10, 16)
	return uint16(port)
}

// addReceived guards what comes in. A tunnel's device also takes packets that come without UDP
// around them, which no gateway sends.
func (f *filter) addReceived(s Setup) {
	received := base("received", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter,
		filterRule{"no tunnel's packet", nft.Join(nft.Protocol(unix.IPPROTO_TCP), nft.Accept())})
	received.rules = append(received.rules, s.eachFamily(func(family int) []filterRule {
		inner := byte(unix.IPPROTO_IPIP)
		if family == unix.AF_INET6 {
			inner = unix.IPPROTO_IPV6
		}
		return []filterRule{
			{"from a gateway", nft.Join(nft.UDPTo(s.Port), nft.Family(family), nft.Source(family), in(senders(family)), nft.Accept())},
			{"tunnels without UDP", nft.Join(nft.Family(family), nft.Protocol(inner), nft.Count(), nft.Drop())},
		}
	})...)
	received.rules = append(received.rules, filterRule{fmt.Sprint(notFromGateway, s.Port), nft.Join(nft.UDPTo(s.Port), nft.Count(), nft.Drop())})
	f.add(received)
}

// addChoice says which connection goes by which gateway.
func (f *filter) addChoice(s Setup, l loosened) {
	output := base("output", nftables.ChainTypeRoute, nftables.ChainHookOutput, nftables.ChainPriorityMangle,
		filterRule{"not by a tunnel", nft.Join(notByTunnel(), nft.Accept())})
	forward := base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityMangle,
		filterRule{"not by a tunnel", nft.Join(notByTunnel(), nft.Accept())},
		filterRule{"it has a gateway", nft.Join(nft.CtMark(markGateway), nft.IsNot(nft.Word(0)...), nft.Accept())})
	var chosenChains []chain
	ids := map[int]bool{}
	for _, family := range s.families() {
		var answer, home [][]byte
		var member, choice []leap
		for i, e := range s.Egresses {
			if len(e.destinations(family)) == 0 {
				continue
			}
			base := e.base(family)
			if e.OriginatingOnly {
				answer = append(answer, keys(append(e.ends(family), base)...)...)
			}
			to := e.chooser(i, family)
			if to.Name != refuse {
				chosenChains = append(chosenChains, to)
			}
			if base == noGateway(family) {
				choice = append(choice, leap{base.AsSlice(), refuse})
			}
			for _, g := range e.nextHops(family) {
				ids[g.ID] = true
				a := of(g.Addrs, family)
				member = append(member, leap{a.AsSlice(), gatewayChain(g.ID)})
				choice = append(choice, leap{a.AsSlice(), to.Name})
				if a == base {
					home = append(home, append(a.AsSlice(), nft.Word(markOf(g.ID))...))
				}
			}
		}
		address := nft.AddressType(family)
		if len(answer) > 0 {
			f.addSet(answering(family), address, answer...)
			output.rules = append(output.rules, filterRule{"answers go their own way" + l.String(),
				nft.Join(nft.Family(family), nft.CtDirection(nft.Reply), nft.NextHop(family), in(answering(family)), nft.SetMark(markOwnWay, markGateway|markOwnWay), nft.Accept())})
		}
		f.addSet(atHome(family), nftables.MustConcatSetType(address, nftables.TypeMark), home...)
		f.addMap(members(family), address, member)
		f.addMap(choices(family), address, choice)
		output.rules = append(output.rules, filterRule{"it is on its way to its gateway",
			nft.Join(nft.Family(family), nft.NextHop(family), nft.CtMarkBeside(family, markGateway), in(atHome(family)), nft.Accept())})
		forward.rules = append(forward.rules, filterRule{"it stays where it went",
			nft.Join(nft.Family(family), nft.NextHop(family), leadTo(members(family)))})
	}
	output.rules = append(output.rules, filterRule{"it has a gateway", nft.Join(nft.CtMark(markGateway), leadTo(pins))})
	for _, family := range s.families() {
		output.rules = append(output.rules,
			filterRule{"it went before it was noted", nft.Join(nft.Family(family), nft.CtState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED),
				nft.CtMark(markGateway), nft.Is(nft.Word(0)...), nft.NextHop(family), leadTo(members(family)))},
			filterRule{"it is new", nft.Join(nft.Family(family), nft.NextHop(family), leadTo(choices(family)))})
	}
	f.addPins(ids)
	f.add(tunnelled())
	f.add(output)
	f.add(forward)
	for _, c := range chosenChains {
		f.add(c)
	}
	f.add(refuseChain())
}

// chooser gives a new connection one of the gateways of an Egress.
func (e Egress) chooser(number, family int) chain {
	list := e.chosen(family)
	if len(list) == 0 {
		return chain{Chain: nftables.Chain{Name: refuse}}
	}
	c := chain{Chain: nftables.Chain{Name: fmt.Sprintf("choose-%d-%s", number, familyDigit(family))}}
	for i, g := range list[1:] {
		// Each of those that are left with the same chance.
		c.rules = append(c.rules, filterRule{e.Name, nft.Join(nft.OneOf(uint32(len(list)-i)), nft.GoTo(gatewayChain(g.ID)))})
	}
	c.rules = append(c.rules, filterRule{e.Name, nft.GoTo(gatewayChain(list[0].ID))})
	return c
}

// addPins has a chain of each gateway that notes it, and the way to it from a connection's mark.
func (f *filter) addPins(ids map[int]bool) {
	var to []leap
	for id := range maxGateway + 1 {
		if !ids[id] {
			continue
		}
		to = append(to, leap{nft.Word(markOf(id)), gatewayChain(id)})
		f.add(chain{nftables.Chain{Name: gatewayChain(id)}, []filterRule{
			{"this one", nft.Join(nft.SetCtMark(markOf(id), markGateway), nft.SetMark(markOf(id), markGateway))},
		}})
	}
	f.addMap(pins, nftables.TypeMark, to)
}

func tunnelled() chain {
	return base("tunnelled", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle,
		filterRule{"what went out is answered", nft.Join(fromTunnel(), nft.CtState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), nft.Accept())},
		filterRule{"nobody begins to talk through a tunnel", nft.Join(fromTunnel(), nft.Count(), nft.Drop())},
		filterRule{"what the pod passes on keeps its gateway", nft.Join(nft.CtDirection(nft.Original), nft.CtMark(markGateway), leadTo(pins))})
}

// refuseChain answers at once, as a route that is unreachable does: TCP would take an ICMP
// message that comes while it still sends for one that may pass.
func refuseChain() chain {
	return chain{nftables.Chain{Name: refuse}, []filterRule{
		{"no gateway takes new connections", nft.Join(nft.Protocol(unix.IPPROTO_TCP), nft.Reset())},
		{"no gateway takes new connections", nft.Reject(unix.NFT_REJECT_ICMPX_NO_ROUTE)},
	}}
}

// fingerprint hashes what the kernel will be given.
func (f filter) fingerprint() (string, error) {
	h := sha256.New()
	for _, s := range f.sets {
		fmt.Fprintln(h, s.Name, s.KeyType.Name, s.IsMap)
		for _, e := range s.elements {
			fmt.Fprintf(h, "%x %+v\n", e.Key, e.VerdictData)
		}
	}
	for _, c := range f.chains {
		fmt.Fprintln(h, c.Name, c.Type)
		if c.Hooknum != nil {
			fmt.Fprintln(h, *c.Hooknum, *c.Priority)
		}
		for _, r := range c.rules {
			for _, e := range r.exprs {
				b, err := expr.Marshal(byte(f.table.Family), e)
				if err != nil {
					return "", fmt.Errorf("encode rule %q: %w", r.comment, err)
				}
				fmt.Fprintf(h, "%x\n", b)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:4]), nil
}

// marked is the comment by which a rule is known.
func (f filter) marked(r filterRule) string { return r.comment + " #" + f.tag }
