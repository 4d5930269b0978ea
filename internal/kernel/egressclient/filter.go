package egressclient

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// filter is the desired content of Berth's nftables table in a pod.
type filter struct{ nft.Table }

// newFilter builds the table.
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
	f := filter{nft.Table{Family: nftables.TableFamilyINet, Name: tunnel.Table}}
	for _, family := range s.families() {
		f.addSenders(s, family)
	}
	f.add(nft.Base("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, s.eachFamily(func(family int) []nft.Rule {
		return []nft.Rule{nft.NewRule("tunnels are not tracked", nft.UDPTo(s.Port), nft.Family(family), nft.Source(family), in(senders(family)), nft.Notrack())}
	})...))
	f.add(nft.Base("sent", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityRaw, s.eachFamily(func(family int) []nft.Rule {
		return []nft.Rule{nft.NewRule("nor is the inner packet's mark theirs", nft.UDPTo(s.Port), nft.Family(family), nft.Destination(family), in(senders(family)), nft.SetMark(0, markGateway|markOwnWay), nft.Notrack())}
	})...))
	f.addReceived(s)
	f.addChoice(s, l)
	var err error
	f.Tag, err = f.Fingerprint()
	return f, err
}

func (f *filter) add(c nft.Chain) { f.Chains = append(f.Chains, c) }

func (s Setup) eachFamily(rules func(family int) []nft.Rule) []nft.Rule {
	var list []nft.Rule
	for _, family := range s.families() {
		list = append(list, rules(family)...)
	}
	return list
}

// Names of sets, by family.
func senders(family int) string   { return fmt.Sprint("gateways", tunnel.Digit(family)) }
func members(family int) string   { return fmt.Sprint("members", tunnel.Digit(family)) }
func choices(family int) string   { return fmt.Sprint("choices", tunnel.Digit(family)) }
func atHome(family int) string    { return fmt.Sprint("home", tunnel.Digit(family)) }
func answering(family int) string { return fmt.Sprint("answering", tunnel.Digit(family)) }

const pins = "pins"

func gatewayChain(id int) string { return fmt.Sprintf("gateway-%d", id) }

// refuse is a chain that all Egresses share.
const refuse = "refuse"

func (f *filter) addSet(name string, key nftables.SetDatatype, addrs ...[]byte) {
	s := nft.Set{Set: &nftables.Set{Name: name, KeyType: key}}
	for _, a := range sortedUnique(addrs) {
		s.Elements = append(s.Elements, nftables.SetElement{Key: a})
	}
	f.Sets = append(f.Sets, s)
}

func sortedUnique(list [][]byte) [][]byte {
	slices.SortFunc(list, slices.Compare)
	return slices.CompactFunc(list, slices.Equal)
}

// addMap adds a verdict map to chains.
func (f *filter) addMap(name string, key nftables.SetDatatype, to []leap) {
	s := nft.Set{Set: &nftables.Set{Name: name, KeyType: key, DataType: nftables.TypeVerdict, IsMap: true}}
	if key == nftables.TypeMark {
		s.KeyByteOrder = binaryutil.NativeEndian
	}
	slices.SortFunc(to, func(a, b leap) int { return slices.Compare(a.key, b.key) })
	to = slices.CompactFunc(to, func(a, b leap) bool { return slices.Equal(a.key, b.key) })
	for _, l := range to {
		s.Elements = append(s.Elements, nftables.SetElement{Key: l.key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: l.chain}})
	}
	f.Sets = append(f.Sets, s)
}

type leap struct {
	key   []byte
	chain string
}

// addSenders adds the set of addresses from which FoU of a family is accepted.
func (f *filter) addSenders(s Setup, family int) {
	var list []netip.Addr
	for _, e := range s.Egresses {
		list = append(list, tunnel.AddrOf(e.Service, family))
		for _, g := range e.Gateways {
			list = append(list, tunnel.AddrOf(g.Addrs, family))
		}
	}
	f.addSet(senders(family), nft.AddressType(family), keys(list...)...)
}

// notFromGateway, followed by the port, is the comment from which Apply reads the port of an earlier one.
const notFromGateway = "not from a gateway: UDP port "

// portIn is the FoU port in the summary of a filter; 0: it has none.
func portIn(summary string) uint16 {
	_, rest, _ := strings.Cut(summary, notFromGateway)
	number, _, _ := strings.Cut(rest, " ")
	port, _ := strconv.ParseUint(number, 10, 16)
	return uint16(port)
}

// addReceived adds the chain for incoming packets. It drops tunnel packets without UDP, which a tunnel's device would
// accept and no gateway sends.
func (f *filter) addReceived(s Setup) {
	received := nft.Base("received", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter,
		nft.NewRule("no tunnel's packet", nft.Protocol(unix.IPPROTO_TCP), nft.Accept()))
	received.Rules = append(received.Rules, s.eachFamily(func(family int) []nft.Rule {
		inner := byte(unix.IPPROTO_IPIP)
		if family == unix.AF_INET6 {
			inner = unix.IPPROTO_IPV6
		}
		return []nft.Rule{
			nft.NewRule("from a gateway", nft.UDPTo(s.Port), nft.Family(family), nft.Source(family), in(senders(family)), nft.Accept()),
			nft.NewRule("tunnels without UDP", nft.Family(family), nft.Protocol(inner), nft.Count(), nft.Drop()),
		}
	})...)
	received.Rules = append(received.Rules, nft.NewRule(fmt.Sprint(notFromGateway, s.Port), nft.UDPTo(s.Port), nft.Count(), nft.Drop()))
	f.add(received)
}

// addChoice adds the chains that choose a gateway for each connection.
func (f *filter) addChoice(s Setup, l loosened) {
	output := nft.Base("output", nftables.ChainTypeRoute, nftables.ChainHookOutput, nftables.ChainPriorityMangle,
		nft.NewRule("not by a tunnel", nft.LeavesByOther(linkPrefix), nft.Accept()))
	forward := nft.Base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityMangle,
		nft.NewRule("not by a tunnel", nft.LeavesByOther(linkPrefix), nft.Accept()),
		nft.NewRule("it has a gateway", nft.CtMark(markGateway), nft.IsNot(nft.Word(0)...), nft.Accept()))
	var chosenChains []nft.Chain
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
				a := tunnel.AddrOf(g.Addrs, family)
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
			output.Rules = append(output.Rules, nft.NewRule("answers go their own way"+l.String(), nft.Family(family), nft.CtDirection(nft.Reply), nft.NextHop(family), in(answering(family)), nft.SetMark(markOwnWay, markGateway|markOwnWay), nft.Accept()))
		}
		f.addSet(atHome(family), nftables.MustConcatSetType(address, nftables.TypeMark), home...)
		f.addMap(members(family), address, member)
		f.addMap(choices(family), address, choice)
		output.Rules = append(output.Rules, nft.NewRule("it is on its way to its gateway", nft.Family(family), nft.NextHop(family), nft.CtMarkBeside(family, markGateway), in(atHome(family)), nft.Accept()))
		forward.Rules = append(forward.Rules, nft.NewRule("it stays where it went", nft.Family(family), nft.NextHop(family), leadTo(members(family))))
	}
	output.Rules = append(output.Rules, nft.NewRule("it has a gateway", nft.CtMark(markGateway), leadTo(pins)))
	for _, family := range s.families() {
		output.Rules = append(output.Rules,
			nft.NewRule("it went before it was noted", nft.Family(family), nft.CtState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED),
				nft.CtMark(markGateway), nft.Is(nft.Word(0)...), nft.NextHop(family), leadTo(members(family))),
			nft.NewRule("it is new", nft.Family(family), nft.NextHop(family), leadTo(choices(family))))
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

// chooser chooses one of an Egress's gateways for a new connection.
func (e Egress) chooser(number, family int) nft.Chain {
	list := e.chosen(family)
	if len(list) == 0 {
		return nft.Regular(refuse)
	}
	c := nft.Regular(fmt.Sprintf("choose-%d-%d", number, tunnel.Digit(family)))
	for i, g := range list[1:] {
		// With equal probability among the remaining ones.
		c.Rules = append(c.Rules, nft.NewRule(e.Name, nft.OneOf(uint32(len(list)-i)), nft.GoTo(gatewayChain(g.ID))))
	}
	c.Rules = append(c.Rules, nft.NewRule(e.Name, nft.GoTo(gatewayChain(list[0].ID))))
	return c
}

// addPins adds a chain for each gateway that sets its mark, and the map from a connection's mark to this chain.
func (f *filter) addPins(ids map[int]bool) {
	var to []leap
	for id := range maxGateway + 1 {
		if !ids[id] {
			continue
		}
		to = append(to, leap{nft.Word(markOf(id)), gatewayChain(id)})
		f.add(nft.Regular(gatewayChain(id),
			nft.NewRule("this one", nft.SetCtMark(markOf(id), markGateway), nft.SetMark(markOf(id), markGateway))))
	}
	f.addMap(pins, nftables.TypeMark, to)
}

func tunnelled() nft.Chain {
	return nft.Base("tunnelled", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle,
		nft.NewRule("what went out is answered", nft.ComesBy(linkPrefix), nft.CtState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), nft.Accept()),
		nft.NewRule("nobody begins to talk through a tunnel", nft.ComesBy(linkPrefix), nft.Count(), nft.Drop()),
		nft.NewRule("what the pod passes on keeps its gateway", nft.CtDirection(nft.Original), nft.CtMark(markGateway), leadTo(pins)))
}

// refuseChain rejects connections at once, as an unreachable route does. It resets TCP connections, which treat an
// ICMP error as temporary.
func refuseChain() nft.Chain {
	return nft.Regular(refuse,
		nft.NewRule("no gateway takes new connections", nft.Protocol(unix.IPPROTO_TCP), nft.Reset()),
		nft.NewRule("no gateway takes new connections", nft.Reject(unix.NFT_REJECT_ICMPX_NO_ROUTE)))
}

// in: @name, for what was loaded.
func in(name string) nft.Exprs { return nft.In(&nftables.Set{Name: name}) }

// leadTo: vmap @name, for what was loaded.
func leadTo(name string) nft.Exprs { return nft.VerdictOf(&nftables.Set{Name: name}) }

// keys encodes addresses as keys of a set.
func keys(addrs ...netip.Addr) [][]byte {
	var list [][]byte
	for _, a := range addrs {
		if a.IsValid() {
			list = append(list, a.AsSlice())
		}
	}
	return list
}
