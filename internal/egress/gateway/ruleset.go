package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath/nft"
	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/egress"
)

// Reason is why packets were dropped.
type Reason string

// The reasons.
const (
	NotClient    Reason = "not-a-client"  // they came to the tunnels' port from somebody who is no client, or says to be another
	Destination  Reason = "destination"   // a client sent them to what is none of the Egress's destinations
	Invalid      Reason = "invalid"       // they are of no connection that is known, and begin none
	NotForwarded Reason = "not-forwarded" // between clients, to the gateway itself, or from outside and no answer
)

// Reasons are all.
var Reasons = []Reason{NotClient, Destination, Invalid, NotForwarded}

// Directions of what is translated.
const (
	Out = "out" // from clients
	In  = "in"  // to clients
)

func counterName(what string, of int) string { return fmt.Sprintf("%s-%d", what, digit(of)) }

// families are those of the ruleset, which has rules for both whatever the gateway has.
var families = []int{unix.AF_INET, unix.AF_INET6}

func table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: egress.Table}
}

// clientSet has a client's address twice: as the source outside and inside.
func clientSet(of int) *nftables.Set {
	kind := nft.AddressType(of)
	return &nftables.Set{
		Table: table(), Name: fmt.Sprintf("clients-%d", digit(of)), Concatenation: true, KeyType: nftables.MustConcatSetType(kind, kind),
	}
}

func clientElement(a netip.Addr, uid string) nftables.SetElement {
	return nftables.SetElement{Key: append(a.AsSlice(), a.AsSlice()...), Comment: uid}
}

func destinationSet(of int) *nftables.Set {
	kind := nft.AddressType(of)
	return &nftables.Set{Table: table(), Name: fmt.Sprintf("destinations-%d", digit(of)), Interval: true, KeyType: kind}
}

// chain is one of the table's, as it should be.
type chain struct {
	nftables.Chain
	rules []rule
}

type rule struct {
	comment string
	exprs   nft.Exprs
}

func base(name string, kind nftables.ChainType, hook *nftables.ChainHook, at *nftables.ChainPriority) chain {
	return chain{nftables.Chain{Name: name, Table: table(), Type: kind, Hooknum: hook, Priority: at}, nil}
}

// linkLocal is what no router passes on (RFC 3927, section 2.6.2), and where clouds serve a node's
// credentials. The kernel itself keeps to it for IPv6.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

// chains are the table's. The gateway's own address of a family decides what is translated; where it
// has none nothing comes out of a tunnel.
func (s Setup) chains() []chain {
	receive := split{base: base("receive", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)}
	send := base("send", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityRaw)
	refuse := base("refuse", nftables.ChainTypeRoute, nftables.ChainHookOutput, nftables.ChainPriorityMangle)
	input := base("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
	forward := split{base: base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)}
	translate := base("translate", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	// Of most packets this is all: the rules of both families cost what a tunnel's packet can do without.
	receive.base.rules = append(receive.base.rules, rule{"what is in no tunnel, or came out of one", nft.Join(nft.Protocol(unix.IPPROTO_TCP), nft.Accept())})
	refuse.rules = append(refuse.rules, rule{"tunnels' packets", nft.Join(nft.UDPTo(s.Port), nft.Accept())})
	chains := []chain{}
	for _, of := range families {
		fou, from, to := s.fou(of), fromClients(of), toClients(of)
		chains = append(chains, fou, from, to)
		receive.of(of,
			rule{"what comes to the port of tunnels", nft.Join(notFromTunnel(of), nft.UDPTo(s.Port), nft.Destination(of), s.isOwn(of), nft.GoTo(fou.Name))},
			rule{"a tunnel in a tunnel is none", nft.Join(fromTunnel(of), nft.UDPTo(s.Port), nft.Destination(of), s.isOwn(of), nft.CountAs(counterName(string(NotForwarded), of)), nft.Drop())},
			rule{"the tunnels' devices would take it without UDP too", nft.Join(nft.Protocol(unix.IPPROTO_IPIP), nft.CountAs(counterName(string(NotClient), of)), nft.Drop())},
			rule{"the tunnels' devices would take it without UDP too", nft.Join(nft.Protocol(unix.IPPROTO_IPV6), nft.CountAs(counterName(string(NotClient), of)), nft.Drop())},
		)
		send.rules = append(send.rules, rule{"tunnels are no connections", nft.Join(nft.Family(of), notToTunnel(of), nft.UDPTo(s.Port), nft.Notrack())})
		refuse.rules = append(refuse.rules, s.refusals(of)...)
		input.rules = append(input.rules, rule{"clients reach others by the gateway, not the gateway", nft.Join(fromTunnel(of), nft.CountAs(counterName(string(NotForwarded), of)), nft.Drop())})
		forward.of(of,
			rule{"of no connection", nft.Join(nft.CtState(expr.CtStateBitINVALID), nft.CountAs(counterName(string(Invalid), of)), nft.Drop())},
			rule{"from clients", nft.Join(fromTunnel(of), nft.GoTo(from.Name))},
			rule{"to clients", nft.Join(toTunnel(of), nft.GoTo(to.Name))},
			rule{"the gateway is no other router", nft.Join(nft.CountAs(counterName(string(NotForwarded), of)), nft.Drop())},
		)
		if own := s.own(of); own.IsValid() {
			translate.rules = append(translate.rules, rule{"what is not the gateway's own", nft.Join(nft.Family(of), notToTunnel(of), notFrom(own), nft.Masquerade())})
		}
	}
	chains = append(chains, receive.families...)
	chains = append(chains, forward.families...)
	return append(chains, receive.base, send, refuse, input, forward.base, translate)
}

// split is a chain whose rules are in chains of their own, one of a family: no packet meets those of the other.
type split struct {
	base     chain
	families []chain
}

// of adds the rules of a family.
func (c *split) of(of int, rules ...rule) {
	own := chain{nftables.Chain{Name: fmt.Sprintf("%s-%d", c.base.Name, digit(of)), Table: table()}, rules}
	c.families = append(c.families, own)
	c.base.rules = append(c.base.rules, rule{fmt.Sprintf("of IPv%d", digit(of)), nft.Join(nft.Family(of), nft.GoTo(own.Name))})
}

// refusals go to clients by the tunnel, as answers do: resets, which come in the name of a host outside, and
// the gateway's errors about what was inside a tunnel, which was not for itself.
func (s Setup) refusals(of int) []rule {
	own := s.own(of)
	if !own.IsValid() {
		return nil
	}
	rules := []rule{{"resets", nft.Join(nft.Family(of), nft.Protocol(unix.IPPROTO_TCP), notFrom(own), nft.SetWholeMark(returnMark))}}
	for _, kind := range icmpErrors[of] {
		rules = append(rules, rule{"errors", nft.Join(nft.Family(of), icmp(of, kind), aboutDestination(of), nft.IsNot(own.AsSlice()...), nft.SetWholeMark(returnMark))})
	}
	return rules
}

// isOwn compares the loaded address with the gateway's own. The unspecified address of a family
// that it has none of is no packet's destination.
func (s Setup) isOwn(of int) nft.Exprs {
	if own := s.own(of); own.IsValid() {
		return nft.Is(own.AsSlice()...)
	}
	_, length := nft.SourceAt(of)
	return nft.Is(make([]byte, length)...)
}

// fou lets in what a client sends from its own address, inside and outside.
func (s Setup) fou(of int) chain {
	return chain{nftables.Chain{Name: fmt.Sprintf("fou-%d", digit(of)), Table: table()}, []rule{
		{"clients", nft.Join(plainHeaders(of), outerAndInner(of), nft.In(clientSet(of)), nft.Notrack(), nft.Accept())},
		{"nobody else", nft.Join(nft.CountAs(counterName(string(NotClient), of)), nft.Drop())},
	}}
}

func fromClients(of int) chain {
	c := chain{nftables.Chain{Name: fmt.Sprintf("from-clients-%d", digit(of)), Table: table()}, nil}
	c.rules = append(c.rules,
		rule{"from a client to a client", nft.Join(toTunnel(of), nft.CountAs(counterName(string(NotForwarded), of)), nft.Drop())},
		rule{"of a connection", nft.Join(nft.CtState(answered), nft.CountAs(counterName(Out, of)), nft.Accept())},
	)
	if of == rtnl.FamilyOf(linkLocal.Addr()) {
		c.rules = append(c.rules, rule{"link-local", nft.Join(nft.Destination(of), nft.Inside(linkLocal), nft.CountAs(counterName(string(Destination), of)), nft.Drop())})
	}
	c.rules = append(c.rules,
		rule{"in the middle of a connection that is not known: it may have been another pod's",
			nft.Join(nft.Protocol(unix.IPPROTO_TCP), notBeginning(), nft.CountAs(counterName(string(Invalid), of)), nft.Reset())},
		rule{"to a destination", nft.Join(nft.Destination(of), nft.In(destinationSet(of)), nft.CountAs(counterName(Out, of)), nft.Accept())},
		rule{"to none", nft.Join(nft.CountAs(counterName(string(Destination), of)), nft.Drop())},
	)
	return c
}

func toClients(of int) chain {
	return chain{nftables.Chain{Name: fmt.Sprintf("to-clients-%d", digit(of)), Table: table()}, []rule{
		{"answers", nft.Join(nft.CtState(answered), nft.CountAs(counterName(In, of)), nft.Accept())},
		{"clients are not reached from outside", nft.Join(nft.CountAs(counterName(string(NotForwarded), of)), nft.Drop())},
	}}
}

// counters are the names of the table's.
func counters() []string {
	var names []string
	for _, of := range families {
		names = append(names, counterName(Out, of), counterName(In, of))
		for _, r := range Reasons {
			names = append(names, counterName(string(r), of))
		}
	}
	return names
}

// fingerprint is a hash of chains. Every rule carries it in its comment, so that the kernel's content
// can be compared without decoding rules.
func fingerprint(chains []chain) (string, error) {
	sum := sha256.New()
	for _, c := range chains {
		fmt.Fprintf(sum, "%s %s %v %v\n", c.Name, c.Type, value(c.Hooknum), value(c.Priority))
		for _, r := range c.rules {
			fmt.Fprintln(sum, r.comment)
			for _, e := range r.exprs {
				data, err := expr.Marshal(byte(nftables.TableFamilyINet), e)
				if err != nil {
					return "", fmt.Errorf("encode rule %q of chain %s: %w", r.comment, c.Name, err)
				}
				sum.Write(data)
			}
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

func value[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

func (r rule) userData(tag string) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, r.comment+" #"+tag)
}
