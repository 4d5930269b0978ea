package demo

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/node"
)

// defaultFamilies are those of the demo's pods where their addresses are of ENIs, unless
// others are given. With ipfamily.Dual the demo has dualProofs too.
const defaultFamilies = ipfamily.Dual

// familiesIn are those of a mode; empty where the mode's addresses say it.
func familiesIn(m lab.Mode) ipfamily.Set {
	if !slices.Contains(withVPC, m) {
		return ""
	}
	return defaultFamilies
}

// The hosts outside a VPC, by family.
var (
	internetHosts = [ipfamily.Number]netip.Addr{fabric.InternetHost, fabric.InternetHost6}
	onPremHosts   = [ipfamily.Number]netip.Addr{fabric.OnPremHost, fabric.OnPremHost6}
)

// afterProof is the one after which dualProofs are shown: pods are on several ENIs, and
// IPv4 works.
const afterProof = "pod to internet, seen as the node's primary address"

// dualProofs are shown where pods have addresses of both families on ENIs.
var dualProofs = []proof{
	{withVPC, "dual stack: each pod has both families, on one ENI", bothFamilies},
	{withVPC, "dual stack: reached by both, IPv6 seen as the pod's own", reachByBoth},
}

// aboutIPv6 explains what is special about IPv6-only pods, and about their nodes here.
const aboutIPv6 = `Pods are IPv6-only: the runtime gets one address, of an ENI, by which the VPC, the
on-premises network and the internet see them. They reach IPv4 hosts as their node, from an
address that is valid on the node only. Nodes of this type get single IPv6 addresses, which
run out; a node of a Nitro type, which gets a whole /80, joins later.`

// onlyIPv6Proofs are shown in place of afterProof for IPv6-only pods, all of whose addresses
// are public.
var onlyIPv6Proofs = []proof{
	{withVPC, "pod to internet, with its own address", toInternet},
	{withVPC, "pod to the internet of IPv4, seen as the node", toOtherFamily},
}

// nitroProof is shown for IPv6-only pods after beforeNitro, where further nodes join.
var nitroProof = proof{withVPC, "a Nitro node's one /80 is enough for all its pods", nitro}

const beforeNitro = "EC2 throttled: a node joins, its pods come up"

// withFamilies adds the proofs about the families of pods.
func withFamilies(all []proof, s ipfamily.Set) []proof {
	i := slices.IndexFunc(all, func(p proof) bool { return p.name == afterProof })
	switch s {
	case ipfamily.Dual:
		return slices.Insert(slices.Clone(all), i+1, dualProofs...)
	case ipfamily.OnlyIPv6:
		all = slices.Concat(all[:i], onlyIPv6Proofs, all[i+1:])
		i = slices.IndexFunc(all, func(p proof) bool { return p.name == beforeNitro })
		return slices.Insert(all, i+1, nitroProof)
	default:
		return all
	}
}

// toOtherFamily asks the internet and another node from every pod by the family of which it has
// no address, and checks which addresses the runtime got for it.
func toOtherFamily(ctx context.Context, s *stage) string {
	var a asks
	other := s.lead().Other()
	primary := func(n *node.Node) netip.Addr { return s.lab.Snapshot().InstanceENIs(n.InstanceID)[0].Primary }
	for i, n := range s.nodes {
		own, next := primary(n), primary(s.nodes[(i+1)%len(s.nodes)])
		for _, p := range n.Pods() {
			if len(p.Addrs) != 1 || ipfamily.Of(p.Addrs[0]) == other {
				fail("the runtime got %[3]v for pod %[1]s of %[2]s, want one address of %[4]s", p.Name, n.Name, p.Addrs, s.lead())
			}
			a.ask(ctx, n.Name+"/"+p.Name, p.Netns(), port(internetHosts[other]), own)
			a.ask(ctx, n.Name+"/"+p.Name, p.Netns(), port(next), own)
		}
	}
	return a.result("runtimes get the %s address only", s.lead())
}

// The node that takes prefixes, and its pods: more than all its ENIs have IPv4 addresses for.
const (
	nitroType = "t3.small"
	nitroPods = 12
)

// nitro launches a node that takes prefixes, and makes its pods.
func nitro(ctx context.Context, s *stage) string {
	i := s.next()
	i.Type = nitroType
	n := s.launch(ctx, i)
	s.add(ctx, n, names("pod", nitroPods))
	var a asks
	used := map[int]bool{}
	for _, p := range n.Pods() {
		k := s.index(n, p.Addr())
		used[k] = true
		a.ask(ctx, n.Name+"/"+p.Name, p.Netns(), port(s.internet()), p.Addr())
	}
	if len(used) != 1 {
		fail("%d pods of %s are on %d ENIs, want one", nitroPods, n.Name, len(used))
	}
	return a.result("%s, a %s: %d pods on one ENI, where %d ENIs have IPv4 for %d", n.Name, nitroType, nitroPods, maxENIs, sizes[lab.NodeMode].addresses)
}

// bothFamilies looks at which ENI has what.
func bothFamilies(_ context.Context, s *stage) string {
	pods, used := 0, map[string]bool{}
	var first string
	for _, n := range s.nodes {
		enis := s.lab.Snapshot().InstanceENIs(n.InstanceID)
		for _, p := range n.Pods() {
			if len(p.Addrs) != 2 || !p.Addrs[0].Is4() || !p.Addrs[1].Is6() {
				fail("pod %s of %s has %v, want one address of each family", p.Name, n.Name, p.Addrs)
			}
			i := slices.IndexFunc(enis, func(e vpc.ENI) bool { return e.Owns(p.Addrs[0]) })
			if i < 0 || !enis[i].Owns(p.Addrs[1]) {
				fail("pod %s of %s has %v, which are not on one ENI", p.Name, n.Name, p.Addrs)
			}
			if first == "" {
				first = fmt.Sprintf("%s/%s has %s and %s, both on ENI %d", n.Name, p.Name, p.Addrs[0], p.Addrs[1], enis[i].Attachment.DeviceIndex)
			}
			pods++
			used[enis[i].ID] = true
		}
	}
	return fmt.Sprintf("%d pods on %d ENIs; %s", pods, len(used), first)
}

// reachByBoth asks pods, nodes and the internet by each family.
func reachByBoth(ctx context.Context, s *stage) string {
	answers := must(oracle.Reach(ctx, s.lab))
	p := s.first(s.nodes[0])
	r := must(p.Ask(ctx, "tcp", internetHosts[ipfamily.IPv6], "hello"))
	return fmt.Sprintf("%d answers of pods, nodes and the internet; %s sees %s itself, %s sees %s", answers, internetHosts[ipfamily.IPv6], r.You, internetHosts[ipfamily.IPv4], s.primary(s.nodes[0]))
}
