package demo

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/node"
)

// asks sends requests and counts correct replies.
type asks struct {
	errs []error
	took []time.Duration
}

// enough is the number of failures that suffices to understand the cause.
const enough = 4

// answerWithin is the timeout of a request: longer than stalls of a busy machine, but not much longer, as each lost
// request takes that long.
const answerWithin = 20 * time.Second

// within returns the timeout of the next request: short after a failure, when further ones only add detail.
func (a *asks) within() time.Duration {
	if len(a.errs) > 0 {
		return 500 * time.Millisecond
	}
	return answerWithin
}

// ask sends a request by TCP and by UDP from a namespace. The destination must see the given source.
func (a *asks) ask(ctx context.Context, who, path string, to netip.AddrPort, wantSource netip.Addr) {
	for _, network := range []string{"tcp", "udp"} {
		if len(a.errs) >= enough {
			return
		}
		one, cancel := context.WithTimeout(ctx, a.within())
		began := time.Now()
		r, err := echo.Ask(one, path, network, to, netip.Addr{}, "hello from "+who)
		cancel()
		switch {
		case err != nil:
			a.errs = append(a.errs, fmt.Errorf("%s to %s by %s: %w", who, to, network, err))
		case r.You != wantSource:
			a.errs = append(a.errs, fmt.Errorf("%s to %s by %s: seen as %s, want %s", who, to, network, r.You, wantSource))
		default:
			a.took = append(a.took, time.Since(began))
		}
	}
}

// pod is ask from a pod.
func (a *asks) pod(ctx context.Context, p *node.Pod, to, wantSource netip.Addr) {
	a.ask(ctx, p.Node+"/"+p.Name, p.Inside(), port(to), wantSource)
}

// long exchanges a text by TCP in packets that are larger than the path MTU beyond the VPC, to which the sender must
// adapt.
func (a *asks) long(ctx context.Context, p *node.Pod, to netip.Addr) {
	if len(a.errs) >= enough {
		return
	}
	one, cancel := context.WithTimeout(ctx, a.within())
	defer cancel()
	text := strings.Repeat("x", 30000)
	if r, err := p.Ask(one, "tcp", to, text); err != nil || r.Text != text {
		a.errs = append(a.errs, fmt.Errorf("%s/%s to %s: %d bytes of %d came back: %w", p.Node, p.Name, to, len(r.Text), len(text), err))
	}
}

func (a *asks) result(format string, args ...any) string {
	check(errors.Join(a.errs...))
	slices.Sort(a.took)
	return fmt.Sprintf(format, args...) + fmt.Sprintf("; %d replies by TCP and UDP, median %s", len(a.took), ms(a.took[len(a.took)/2]))
}

func port(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, echo.Port) }

// everyPod yields all pods with the index of their node.
func (s *stage) everyPod() iter.Seq2[int, *node.Pod] {
	return func(yield func(int, *node.Pod) bool) {
		for i, n := range s.nodes {
			for _, p := range n.Pods() {
				if !yield(i, p) {
					return
				}
			}
		}
	}
}

// after returns the node that is a number of places further, in a circle.
func (s *stage) after(i, places int) *node.Node { return s.nodes[(i+places)%len(s.nodes)] }

// pairs sends requests from each pod to each other pod of its node, or of the node some places further, and counts
// pairs of ENIs.
func (s *stage) pairs(ctx context.Context, places int) string {
	var a asks
	enis := map[[2]int]bool{}
	for i, p := range s.everyPod() {
		far := s.after(i, places)
		for _, q := range far.Pods() {
			if p != q {
				a.pod(ctx, p, q.Addr(), p.Addr())
				enis[[2]int{s.index(s.nodes[i], p.Addr()), s.index(far, q.Addr())}] = true
			}
		}
	}
	return a.result("%d pairs of ENIs", len(enis))
}

func podToPodOnOneNode(ctx context.Context, s *stage) string { return s.pairs(ctx, 0) }

func podToPodAcrossNodes(ctx context.Context, s *stage) string { return s.pairs(ctx, 1) }

// podsAndNodes sends requests from pods to their own and another node, and from nodes to their own and another node's
// pods.
func podsAndNodes(ctx context.Context, s *stage) string {
	var a asks
	for i, p := range s.everyPod() {
		for _, n := range []*node.Node{s.nodes[i], s.after(i, 1)} {
			a.pod(ctx, p, s.primary(n), p.Addr())
			a.ask(ctx, n.Name, n.Netns, port(p.Addr()), s.primary(n))
		}
	}
	return a.result("%d nodes", len(s.nodes))
}

// toInternet sends requests to the internet host from every pod, and so from every ENI. Over IPv4 the host sees the
// node's primary address, the only public one.
func toInternet(ctx context.Context, s *stage) string {
	var a asks
	enis := map[[2]int]bool{}
	for i, p := range s.everyPod() {
		a.pod(ctx, p, s.internet(), oracle.SeenOutside(s.lab, s.nodes[i], p.Addr()))
		a.long(ctx, p, s.internet())
		enis[[2]int{i, s.index(s.nodes[i], p.Addr())}] = true
	}
	return a.result("from %d ENIs", len(enis))
}

// onPremises sends requests in both directions. Each side sees the other's own address.
func onPremises(ctx context.Context, s *stage) string {
	var a asks
	for _, p := range s.everyPod() {
		a.pod(ctx, p, s.onPrem(), p.Addr())
		a.ask(ctx, "on-premises", s.lab.Fabric.OnPremPath(), port(p.Addr()), s.onPrem())
	}
	return a.result("no SNAT towards %s", s.onPrem())
}

// everyFamily sends requests to pods, nodes and hosts outside in each family, including one without pod addresses.
func everyFamily(ctx context.Context, s *stage) string {
	answers, p := must(oracle.Reach(ctx, s.lab)), s.first(s.nodes[0])
	var seen []string
	for _, host := range oracle.OutsideHosts(s.lab) {
		seen = append(seen, fmt.Sprintf("%s sees %s", host, must(p.Ask(ctx, "tcp", host, "hello")).You))
	}
	return fmt.Sprintf("%d replies; %s/%s has %v, %s", answers, p.Node, p.Name, p.Addrs, strings.Join(seen, ", "))
}

// fromOutside sends requests from outside to pods, at each address.
func fromOutside(ctx context.Context, s *stage) string {
	var a asks
	outside := []netip.Addr{site.OutsideHost, site.OutsideHost6}
	for _, p := range s.everyPod() {
		for i, to := range p.Addrs {
			a.ask(ctx, "outside", s.lab.OutsidePath(), port(to), outside[i])
		}
	}
	return a.result("by the router, no NAT")
}

// defaultFamilies are the default families of the demo's pods with ENI addresses.
const defaultFamilies = ipfamily.Dual

// familiesIn returns the families of a mode; empty if they follow from the mode's addresses.
func familiesIn(m lab.Mode) ipfamily.Set {
	if !m.HasEC2() {
		return ""
	}
	return defaultFamilies
}

// The hosts outside a VPC, by family.
var (
	internetHosts = [ipfamily.Number]netip.Addr{fabric.InternetHost, fabric.InternetHost6}
	onPremHosts   = [ipfamily.Number]netip.Addr{fabric.OnPremHost, fabric.OnPremHost6}
)

// aboutIPv6 explains what is special about IPv6-only pods and about their nodes in this demo.
const aboutIPv6 = `Pods are IPv6-only: the runtime gets one address, of an ENI, by which the VPC, the
on-premises network and the internet see them. They reach IPv4 hosts as their node, from an
address that is valid on the node only. Nodes of this type get single IPv6 addresses, which
run out; a node of a Nitro type, which gets a whole /80, joins later.`

// The node that supports prefixes, and its pods: more than its ENIs have IPv4 addresses.
const (
	nitroType = "t3.small"
	nitroPods = 12
)

// nitro launches a node that supports prefixes, and adds its pods.
func nitro(ctx context.Context, s *stage) string {
	i := s.next()
	i.Type = nitroType
	n := s.launch(ctx, i)
	s.add(ctx, n, names("pod", nitroPods))
	var a asks
	used := map[int]bool{}
	for _, p := range n.Pods() {
		used[s.index(n, p.Addr())] = true
		a.pod(ctx, p, s.internet(), p.Addr())
	}
	if len(used) != 1 {
		fail("%d pods of %s are on %d ENIs, want one", nitroPods, n.Name, len(used))
	}
	return a.result("%s, a %s: %d pods on one ENI, where %d ENIs have IPv4 for %d", n.Name, nitroType, nitroPods, maxENIs, sizes[lab.NodeMode].addresses)
}
