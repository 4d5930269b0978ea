package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/node"
)

// asks counts questions that were answered as they should be.
type asks struct {
	errs []error
	took []time.Duration
}

// enough failures to tell what is wrong; further questions would only take time.
const enough = 4

// answerWithin is how long a question may take: longer than a busy machine stands
// still, and no longer, as what is lost is waited for so long.
const answerWithin = 20 * time.Second

// within is how long the next question may take: little once one has failed, since
// that decides, and the rest adds detail.
func (a *asks) within() time.Duration {
	if len(a.errs) > 0 {
		return 500 * time.Millisecond
	}
	return answerWithin
}

// ask sends one question by TCP and one by UDP from a namespace, and wants it
// seen as coming from a source.
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

// long sends and gets back by TCP what takes many packets, larger ones than the
// path beyond the VPC has room for: the sender must learn of that.
func (a *asks) long(ctx context.Context, who, path string, to netip.AddrPort) {
	if len(a.errs) >= enough {
		return
	}
	one, cancel := context.WithTimeout(ctx, a.within())
	defer cancel()
	text := strings.Repeat("x", 30000)
	if r, err := echo.Ask(one, path, "tcp", to, netip.Addr{}, text); err != nil || r.Text != text {
		a.errs = append(a.errs, fmt.Errorf("%s to %s: %d bytes of %d came back: %w", who, to, len(r.Text), len(text), err))
	}
}

func (a *asks) result(format string, args ...any) string {
	check(errors.Join(a.errs...))
	slices.Sort(a.took)
	return fmt.Sprintf(format, args...) + fmt.Sprintf("; %d answers by TCP and UDP, median %s", len(a.took), ms(a.took[len(a.took)/2]))
}

func port(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, echo.Port) }

// pairs asks from each pod of a node to each other pod of a node, and counts the pairs of ENIs.
func (s *stage) pairs(ctx context.Context, to func(i int) *node.Node) string {
	var a asks
	enis := map[[2]int]bool{}
	for i, n := range s.nodes {
		far := to(i)
		for _, p := range n.Pods() {
			for _, q := range far.Pods() {
				if p != q {
					a.ask(ctx, n.Name+"/"+p.Name, p.Netns(), port(q.Addr()), p.Addr())
					enis[[2]int{s.index(n, p.Addr()), s.index(far, q.Addr())}] = true
				}
			}
		}
	}
	return a.result("%d pairs of ENIs", len(enis))
}

func podToPodOnOneNode(ctx context.Context, s *stage) string {
	return s.pairs(ctx, func(i int) *node.Node { return s.nodes[i] })
}

func podToPodAcrossNodes(ctx context.Context, s *stage) string {
	return s.pairs(ctx, func(i int) *node.Node { return s.nodes[(i+1)%len(s.nodes)] })
}

// podsAndNodes asks from pods to their own and another node, and from nodes to
// their own and another's pods.
func podsAndNodes(ctx context.Context, s *stage) string {
	var a asks
	for i, n := range s.nodes {
		other := s.nodes[(i+1)%len(s.nodes)]
		for _, p := range n.Pods() {
			who := n.Name + "/" + p.Name
			a.ask(ctx, who, p.Netns(), port(s.primary(n)), p.Addr())
			a.ask(ctx, who, p.Netns(), port(s.primary(other)), p.Addr())
			a.ask(ctx, n.Name, n.Netns, port(p.Addr()), s.primary(n))
			a.ask(ctx, other.Name, other.Netns, port(p.Addr()), s.primary(other))
		}
	}
	return a.result("%d nodes", len(s.nodes))
}

// toInternet asks the internet host from every pod, and so from every ENI. By IPv4 it sees the
// node's primary address, the only public one.
func toInternet(ctx context.Context, s *stage) string {
	var a asks
	enis := map[[2]int]bool{}
	for k, n := range s.nodes {
		for _, p := range n.Pods() {
			a.ask(ctx, n.Name+"/"+p.Name, p.Netns(), port(s.internet()), oracle.SeenOutside(s.lab, n, p.Addr()))
			a.long(ctx, n.Name+"/"+p.Name, p.Netns(), port(s.internet()))
			enis[[2]int{k, s.index(n, p.Addr())}] = true
		}
	}
	return a.result("from %d ENIs", len(enis))
}

// onPremises asks there and back; both sides see the other's own address.
func onPremises(ctx context.Context, s *stage) string {
	var a asks
	for _, n := range s.nodes {
		for _, p := range n.Pods() {
			a.ask(ctx, n.Name+"/"+p.Name, p.Netns(), port(s.onPrem()), p.Addr())
			a.ask(ctx, "on-premises", s.lab.Fabric.OnPremPath(), port(p.Addr()), s.onPrem())
		}
	}
	return a.result("no SNAT towards %s", s.onPrem())
}
