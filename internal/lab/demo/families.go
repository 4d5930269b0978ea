package demo

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
	"github.com/berthnet/berth/internal/lab/network/fabric"
)

// defaultFamilies are those of the demo's pods where their addresses are of ENIs, unless
// others are asked for. With ipfamily.Dual its story has dualProofs too.
const defaultFamilies = ipfamily.Dual

// familiesIn are those of a mode; empty where the mode's addresses say it.
func familiesIn(m lab.Mode) ipfamily.Set {
	if !slices.Contains(withVPC, m) {
		return ""
	}
	return defaultFamilies
}

// lead is the family that the story asks by: IPv4 where pods have it.
func (s *stage) lead() ipfamily.Family { return s.lab.PodFamilies().Families()[0] }

// The hosts outside a VPC, by family.
var (
	internetHosts = [ipfamily.Number]netip.Addr{fabric.InternetHost, fabric.InternetHost6}
	onPremHosts   = [ipfamily.Number]netip.Addr{fabric.OnPremHost, fabric.OnPremHost6}
)

func (s *stage) internet() netip.Addr { return internetHosts[s.lead()] }

func (s *stage) onPrem() netip.Addr { return onPremHosts[s.lead()] }

// afterProof is the one after which dualProofs are shown: pods are on several ENIs, and
// IPv4 works.
const afterProof = "pod to internet, seen as the node's primary address"

// dualProofs are shown where pods have addresses of both families on ENIs.
var dualProofs = []proof{
	{withVPC, "dual stack: each pod has both families, on one ENI", bothFamilies},
	{withVPC, "dual stack: reached by both, IPv6 seen as the pod's own", reachByBoth},
}

// onlyIPv6Proofs are shown in place of afterProof where pods have IPv6 alone, of which all
// addresses are public.
var onlyIPv6Proofs = []proof{
	{withVPC, "pod to internet, with its own address", toInternet},
	{withVPC, "pod to the internet of IPv4, seen as the node", toOtherFamily},
}

// withFamilies is a story with what is special to the families that pods have.
func withFamilies(all []proof, s ipfamily.Set) []proof {
	i := slices.IndexFunc(all, func(p proof) bool { return p.name == afterProof })
	switch s {
	case ipfamily.Dual:
		return slices.Insert(slices.Clone(all), i+1, dualProofs...)
	case ipfamily.OnlyIPv6:
		return slices.Concat(all[:i], onlyIPv6Proofs, all[i+1:])
	default:
		return all
	}
}

// toOtherFamily asks the internet from every pod by the family of which it has no address,
// and looks at what the pod was told that it has.
func toOtherFamily(ctx context.Context, s *stage) (string, error) {
	var a asks
	other := s.lead().Other()
	for _, n := range s.nodes {
		own := s.lab.Books().InstanceENIs(n.InstanceID)[0].Primary
		for _, p := range n.Pods() {
			if len(p.Addrs) != 1 || ipfamily.Of(p.Addrs[0]) == other {
				return "", fmt.Errorf("pod %s of %s was told of %v, want one address of %s", p.Name, n.Name, p.Addrs, s.lead())
			}
			a.ask(ctx, n.Name+"/"+p.Name, p.Netns(), port(internetHosts[other]), own)
		}
	}
	return a.result("pods are told of their %s alone", s.lead())
}

// bothFamilies looks at which ENI has what.
func bothFamilies(_ context.Context, s *stage) (string, error) {
	pods, used := 0, map[string]bool{}
	var first string
	for _, n := range s.nodes {
		enis := s.lab.Books().InstanceENIs(n.InstanceID)
		for _, p := range n.Pods() {
			if len(p.Addrs) != 2 || !p.Addrs[0].Is4() || !p.Addrs[1].Is6() {
				return "", fmt.Errorf("pod %s of %s has %v, want one address of each family", p.Name, n.Name, p.Addrs)
			}
			i := slices.IndexFunc(enis, func(e vpc.ENI) bool { return e.Owns(p.Addrs[0]) })
			if i < 0 || !enis[i].Owns(p.Addrs[1]) {
				return "", fmt.Errorf("pod %s of %s has %v, which are not on one ENI", p.Name, n.Name, p.Addrs)
			}
			if first == "" {
				first = fmt.Sprintf("%s/%s has %s and %s, both on ENI %d", n.Name, p.Name, p.Addrs[0], p.Addrs[1], enis[i].Attachment.DeviceIndex)
			}
			pods++
			used[enis[i].ID] = true
		}
	}
	return fmt.Sprintf("%d pods on %d ENIs; %s", pods, len(used), first), nil
}

// reachByBoth asks pods, nodes and the internet by each family.
func reachByBoth(ctx context.Context, s *stage) (string, error) {
	answers, err := s.lab.CheckReach(ctx)
	if err != nil {
		return "", err
	}
	p, err := s.first(s.nodes[0])
	if err != nil {
		return "", err
	}
	r, err := p.Ask(ctx, "tcp", internetHosts[ipfamily.IPv6], "hello")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d answers of pods, nodes and the internet; %s sees %s itself, %s sees %s", answers, internetHosts[ipfamily.IPv6], r.You, internetHosts[ipfamily.IPv4], s.primary(s.nodes[0])), nil
}

// addressesOf counts the addresses among those that a NodeNetwork makes available, of the family
// that the story asks by. How many of IPv6 there are beside IPv4 says nothing: they come as a prefix.
func (s *stage) addressesOf(o *v1alpha1.NodeNetwork) (n int) {
	for text := range o.Spec.IPAM.Available {
		address, _, _ := strings.Cut(text, "/")
		if a, err := netip.ParseAddr(address); err == nil && ipfamily.Of(a) == s.lead() {
			n++
		}
	}
	return n
}
