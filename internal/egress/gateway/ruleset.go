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

func counterName(what string, of int) string { return fmt.Sprintf("%s-%d", what, of) }

// families are those of the ruleset, which has rules for both whatever the gateway has.
var families = []int{4, 6}

func table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: egress.Table}
}

// clientSet has a client's address twice: as the source outside and inside.
func clientSet(of int) *nftables.Set {
	kind := nftables.TypeIPAddr
	if of == 6 {
		kind = nftables.TypeIP6Addr
	}
	return &nftables.Set{
		Table: table(), Name: fmt.Sprintf("clients-%d", of), Concatenation: true, KeyType: nftables.MustConcatSetType(kind, kind),
	}
}

func clientElement(a netip.Addr, uid string) nftables.SetElement {
	return nftables.SetElement{Key: append(a.AsSlice(), a.AsSlice()...), Comment: uid}
}

func destinationSet(of int) *nftables.Set {
	kind := nftables.TypeIPAddr
	if of == 6 {
		kind = nftables.TypeIP6Addr
	}
	return &nftables.Set{Table: table(), Name: fmt.Sprintf("destinations-%d", of), Interval: true, KeyType: kind}
}

// destinationElements are networks as an interval set has them: where one begins, and where it ends,
// unless that is the end of all addresses.
func destinationElements(list []netip.Prefix) []nftables.SetElement {
	var out []nftables.SetElement
	for _, p := range list {
		out = append(out, nftables.SetElement{Key: p.Addr().AsSlice()})
		if end := after(p); end.IsValid() {
			out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// after is the first address behind a network; invalid, if there is none.
func after(p netip.Prefix) netip.Addr {
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(last)
	return a.Next()
}

// chain is one of the table's, as it should be.
type chain struct {
	nftables.Chain
	rules []rule
}

type rule struct {
	comment string
	exprs   exprs
}

func base(name string, kind nftables.ChainType, hook *nftables.ChainHook, at *nftables.ChainPriority, rules ...rule) chain {
	return chain{nftables.Chain{Name: name, Table: table(), Type: kind, Hooknum: hook, Priority: at}, rules}
}

// linkLocal is what no router passes on (RFC 3927, section 2.6.2), and where clouds serve a node's
// credentials. The kernel itself keeps to it for IPv6.
var linkLocal = netip.MustParsePrefix("169.254.0.0/16")

// chains are the table's. The gateway's own address of a family decides what is translated; where it
// has none nothing comes out of a tunnel.
func (s Setup) chains() []chain {
	receive := base("receive", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	send := base("send", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityRaw)
	refuse := base("refuse", nftables.ChainTypeRoute, nftables.ChainHookOutput, nftables.ChainPriorityMangle)
	input := base("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
	forward := base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	translate := base("translate", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	chains := []chain{}
	for _, of := range families {
		fou, from, to := s.fou(of), fromClients(of), toClients(of)
		chains = append(chains, fou, from, to)
		receive.rules = append(receive.rules,
			rule{"a tunnel in a tunnel is none", join(isFamily(of), fromTunnel(of), udpTo(s.Port), destination(of), s.isOwn(of), counted(counterName(string(NotForwarded), of)), drop())},
			rule{"what comes to the port of tunnels", join(isFamily(of), notFromTunnel(of), udpTo(s.Port), destination(of), s.isOwn(of), goTo(fou.Name))},
			rule{"the tunnels' devices would take it without UDP too", join(isFamily(of), protocol(unix.IPPROTO_IPIP), counted(counterName(string(NotClient), of)), drop())},
			rule{"the tunnels' devices would take it without UDP too", join(isFamily(of), protocol(unix.IPPROTO_IPV6), counted(counterName(string(NotClient), of)), drop())},
		)
		send.rules = append(send.rules, rule{"tunnels are no connections", join(isFamily(of), notToTunnel(of), udpTo(s.Port), notrack())})
		refuse.rules = append(refuse.rules, s.refusals(of)...)
		input.rules = append(input.rules, rule{"clients reach others by the gateway, not the gateway", join(fromTunnel(of), counted(counterName(string(NotForwarded), of)), drop())})
		forward.rules = append(forward.rules,
			rule{"of no connection", join(isFamily(of), state(expr.CtStateBitINVALID), counted(counterName(string(Invalid), of)), drop())},
			rule{"from clients", join(isFamily(of), fromTunnel(of), goTo(from.Name))},
			rule{"to clients", join(isFamily(of), toTunnel(of), goTo(to.Name))},
			rule{"the gateway is no other router", join(isFamily(of), counted(counterName(string(NotForwarded), of)), drop())},
		)
		if own := s.own(of); own.IsValid() {
			translate.rules = append(translate.rules, rule{"what is not the gateway's own", join(isFamily(of), notToTunnel(of), notFrom(own), masquerade())})
		}
	}
	return append(chains, receive, send, refuse, input, forward, translate)
}

// refusals go to clients by the tunnel, as answers do: resets, which come in the name of a host outside, and
// the gateway's errors about what was inside a tunnel, which was not for itself.
func (s Setup) refusals(of int) []rule {
	own := s.own(of)
	if !own.IsValid() {
		return nil
	}
	rules := []rule{{"resets", join(isFamily(of), protocol(unix.IPPROTO_TCP), notFrom(own), mark(returnMark))}}
	for _, kind := range icmpErrors[of] {
		rules = append(rules, rule{"errors", join(isFamily(of), icmp(of, kind), aboutDestination(of), isNot(own.AsSlice()...), mark(returnMark))})
	}
	return rules
}

// isOwn compares the loaded address with the gateway's own. The unspecified address of a family
// that it has none of is no packet's destination.
func (s Setup) isOwn(of int) exprs {
	if own := s.own(of); own.IsValid() {
		return is(own.AsSlice()...)
	}
	_, length := source(of)
	return is(make([]byte, length)...)
}

// fou lets in what a client sends from its own address, inside and outside.
func (s Setup) fou(of int) chain {
	return chain{nftables.Chain{Name: fmt.Sprintf("fou-%d", of), Table: table()}, []rule{
		{"clients", join(plainHeaders(of), outerAndInner(of), in(clientSet(of)), notrack(), accept())},
		{"nobody else", join(counted(counterName(string(NotClient), of)), drop())},
	}}
}

func fromClients(of int) chain {
	c := chain{nftables.Chain{Name: fmt.Sprintf("from-clients-%d", of), Table: table()}, nil}
	c.rules = append(c.rules,
		rule{"from a client to a client", join(toTunnel(of), counted(counterName(string(NotForwarded), of)), drop())},
		rule{"of a connection", join(state(answered), counted(counterName(Out, of)), accept())},
	)
	if of == family(linkLocal.Addr()) {
		c.rules = append(c.rules, rule{"link-local", join(destination(of), inside(linkLocal), counted(counterName(string(Destination), of)), drop())})
	}
	c.rules = append(c.rules,
		rule{"in the middle of a connection that is not known: it may have been another pod's",
			join(protocol(unix.IPPROTO_TCP), notBeginning(), counted(counterName(string(Invalid), of)), reset())},
		rule{"to a destination", join(destination(of), in(destinationSet(of)), counted(counterName(Out, of)), accept())},
		rule{"to none", join(counted(counterName(string(Destination), of)), drop())},
	)
	return c
}

func toClients(of int) chain {
	return chain{nftables.Chain{Name: fmt.Sprintf("to-clients-%d", of), Table: table()}, []rule{
		{"answers", join(state(answered), counted(counterName(In, of)), accept())},
		{"clients are not reached from outside", join(counted(counterName(string(NotForwarded), of)), drop())},
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
