package demo

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
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

// afterProof is the one after which dualProofs are shown: pods are on several ENIs, and
// IPv4 works.
const afterProof = "pod to internet, seen as the node's primary address"

// dualProofs are shown where pods have addresses of both families on ENIs.
var dualProofs = []proof{
	{withVPC, "dual stack: each pod has both families, on one ENI", bothFamilies},
	{withVPC, "dual stack: reached by both, IPv6 seen as the pod's own", reachByBoth},
}

// withDual is a story with dualProofs.
func withDual(all []proof) []proof {
	i := slices.IndexFunc(all, func(p proof) bool { return p.name == afterProof })
	return slices.Insert(slices.Clone(all), i+1, dualProofs...)
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
	hosts := s.lab.OutsideHosts()
	r, err := p.Ask(ctx, "tcp", hosts[1], "hello")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d answers of pods, nodes and the internet; %s sees %s itself, %s sees %s", answers, hosts[1], r.You, hosts[0], s.primary(s.nodes[0])), nil
}

// ipv4Of counts the IPv4 addresses among those that a NodeNetwork makes available. How many
// of IPv6 there are says nothing: they come as a prefix.
func ipv4Of[V any](available map[string]V) (n int) {
	for text := range available {
		address, _, _ := strings.Cut(text, "/")
		if a, err := netip.ParseAddr(address); err == nil && a.Is4() {
			n++
		}
	}
	return n
}
