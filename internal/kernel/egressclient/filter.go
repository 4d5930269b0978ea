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
//	raw, sent   exempt tunnel packets from connection tracking, which sees the inner packets
//	received    accepts FoU from the gateways only
//	tunnelled   accepts from a tunnel only packets of connections that the pod opened, and keeps
//	            the gateway of packets that the pod forwards for others
//	output      routes each connection to its gateway
//	forward     does the same for connections that the pod forwards
//	gateway-N   marks a connection and its packet for gateway N
//	choose-…    chooses one of an Egress's gateways for a new connection
//	refuse      rejects new connections to an Egress without a gateway
func newFilter(s Setup, l loosened) (filter, error) {
	s = s.sorted()
	f := filter{nft.Table{Family: nftables.TableFamilyINet, Name: tunnel.Table}}
	for _, family := range s.families() {
		f.addSenders(s, family)
	}
	f.add(nft.Base("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, s.eachFamily(func(family int) []nft.Rule {
		return []nft.Rule{nft.NewRule("tunnel packets: bypass connection tracking", nft.UDPTo(s.Port), nft.Family(family), nft.Source(family), in(senders(family)), nft.Notrack())}
	})...))
	f.add(nft.Base("sent", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityRaw, s.eachFamily(func(family int) []nft.Rule {
		return []nft.Rule{nft.NewRule("tunnel packets: clear the inner packet's mark, bypass connection tracking", nft.UDPTo(s.Port), nft.Family(family), nft.Destination(family), in(senders(family)), nft.SetMark(0, markGateway|markOwnWay), nft.Notrack())}
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

// notFromGateway, followed by the port, is the rule comment from which Apply reads the port of an earlier Setup.
const notFromGateway = "not from a gateway: UDP port "

// portIn returns the FoU port in the summary of a filter; 0: none.
func portIn(summary string) uint16 {
	_, rest, _ := strings.Cut(summary, notFromGateway)
	number, _, _ := strings.Cut(rest, " ")
	port, _ := strconv.ParseUint(number, 10, 16)
	return uint16(port)
}

// addReceived adds the chain for incoming packets. It drops tunnel packets without UDP, which a tunnel device would
// accept but no gateway sends.
func (f *filter) addReceived(s Setup) {
	received := nft.Base("received", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter,
		nft.NewRule("TCP is not a tunnel packet", nft.Protocol(unix.IPPROTO_TCP), nft.Accept()))
	received.Rules = append(received.Rules, s.eachFamily(func(family int) []nft.Rule {
		inner := byte(unix.IPPROTO_IPIP)
		if family == unix.AF_INET6 {
			inner = unix.IPPROTO_IPV6
		}
		return []nft.Rule{
			nft.NewRule("from a gateway", nft.UDPTo(s.Port), nft.Family(family), nft.Source(family), in(senders(family)), nft.Accept()),
			nft.NewRule("tunnel packet without UDP", nft.Family(family), nft.Protocol(inner), nft.Count(), nft.Drop()),
		}
	})...)
	received.Rules = append(received.Rules, nft.NewRule(fmt.Sprint(notFromGateway, s.Port), nft.UDPTo(s.Port), nft.Count(), nft.Drop()))
	f.add(received)
}

// addChoice adds the chains that choose a gateway for each connection.
func (f *filter) addChoice(s Setup, l loosened) {
	output := nft.Base("output", nftables.ChainTypeRoute, nftables.ChainHookOutput, nftables.ChainPriorityMangle,
		nft.NewRule("does not leave through a tunnel", nft.LeavesByOther(linkPrefix), nft.Accept()))
	forward := nft.Base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityMangle,
		nft.NewRule("does not leave through a tunnel", nft.LeavesByOther(linkPrefix), nft.Accept()),
		nft.NewRule("connection already has a gateway", nft.CtMark(markGateway), nft.IsNot(nft.Word(0)...), nft.Accept()))
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
			output.Rules = append(output.Rules, nft.NewRule("replies use the main routing table"+l.String(), nft.Family(family), nft.CtDirection(nft.Reply), nft.NextHop(family), in(answering(family)), nft.SetMark(markOwnWay, markGateway|markOwnWay), nft.Accept()))
		}
		f.addSet(atHome(family), nftables.MustConcatSetType(address, nftables.TypeMark), home...)
		f.addMap(members(family), address, member)
		f.addMap(choices(family), address, choice)
		output.Rules = append(output.Rules, nft.NewRule("already routed to the connection's gateway", nft.Family(family), nft.NextHop(family), nft.CtMarkBeside(family, markGateway), in(atHome(family)), nft.Accept()))
		forward.Rules = append(forward.Rules, nft.NewRule("keep the gateway of the current route", nft.Family(family), nft.NextHop(family), leadTo(members(family))))
	}
	output.Rules = append(output.Rules, nft.NewRule("use the connection's gateway", nft.CtMark(markGateway), leadTo(pins)))
	for _, family := range s.families() {
		output.Rules = append(output.Rules,
			nft.NewRule("existing connection without a mark: keep the gateway of the current route", nft.Family(family), nft.CtState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED),
				nft.CtMark(markGateway), nft.Is(nft.Word(0)...), nft.NextHop(family), leadTo(members(family))),
			nft.NewRule("new connection: choose a gateway", nft.Family(family), nft.NextHop(family), leadTo(choices(family))))
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
		// Each remaining gateway with equal probability.
		c.Rules = append(c.Rules, nft.NewRule(e.Name, nft.OneOf(uint32(len(list)-i)), nft.GoTo(gatewayChain(g.ID))))
	}
	c.Rules = append(c.Rules, nft.NewRule(e.Name, nft.GoTo(gatewayChain(list[0].ID))))
	return c
}

// addPins adds a chain for each gateway that sets the gateway's mark, and the map from a connection's mark to this chain.
func (f *filter) addPins(ids map[int]bool) {
	var to []leap
	for id := range maxGateway + 1 {
		if !ids[id] {
			continue
		}
		to = append(to, leap{nft.Word(markOf(id)), gatewayChain(id)})
		f.add(nft.Regular(gatewayChain(id),
			nft.NewRule("mark the connection and the packet", nft.SetCtMark(markOf(id), markGateway), nft.SetMark(markOf(id), markGateway))))
	}
	f.addMap(pins, nftables.TypeMark, to)
}

func tunnelled() nft.Chain {
	return nft.Base("tunnelled", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle,
		nft.NewRule("connection that the pod opened", nft.ComesBy(linkPrefix), nft.CtState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), nft.Accept()),
		nft.NewRule("unsolicited packet from a tunnel", nft.ComesBy(linkPrefix), nft.Count(), nft.Drop()),
		nft.NewRule("forwarded packets keep the connection's gateway", nft.CtDirection(nft.Original), nft.CtMark(markGateway), leadTo(pins)))
}

// refuseChain rejects connections immediately, as an unreachable route does. It resets TCP connections, which treat
// an ICMP error as temporary.
func refuseChain() nft.Chain {
	return nft.Regular(refuse,
		nft.NewRule("no gateway takes new connections", nft.Protocol(unix.IPPROTO_TCP), nft.Reset()),
		nft.NewRule("no gateway takes new connections", nft.Reject(unix.NFT_REJECT_ICMPX_NO_ROUTE)))
}

// in matches if the set contains the loaded value (nft: @name).
func in(name string) nft.Exprs { return nft.In(&nftables.Set{Name: name}) }

// leadTo applies the verdict that the map has for the loaded value (nft: vmap @name).
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
