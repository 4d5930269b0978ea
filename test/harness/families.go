package harness

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
)

// FamiliesVar is the environment variable with the IP families of pods in labs of node mode and
// operator mode that do not choose any: ipv4 (the default), dual or ipv6 (`make families`).
const FamiliesVar = "BERTH_IP_FAMILIES"

// families parses FamiliesVar. The error names it.
func families(asked string) (ipfamily.Set, error) {
	s, err := ipfamily.Parse(asked)
	if err != nil {
		return "", fmt.Errorf("%s: %w", FamiliesVar, err)
	}
	return s, nil
}

// Families are those of a lab that does not choose any.
func Families() ipfamily.Set {
	s, _ := families(os.Getenv(FamiliesVar)) // Main has looked at it
	return s
}

// withFamilies gives a lab Families, unless it chooses its own or can have none.
func withFamilies(o lab.Options) lab.Options {
	if o.IPFamilies == "" && (o.Mode == lab.NodeMode || o.Mode == lab.OperatorMode) {
		o.IPFamilies = Families()
	}
	return o
}

// Size is an instance type with the number of pods that it has addresses for, in labs of Families.
type Size struct {
	Type    string
	ENIs    int
	Primary int // pods with addresses of the primary ENI
	PerENI  int // and of each other
}

// Few is a size for tests of a node that runs out of addresses: of an instance type or, with IPv6-only
// pods, of one with as many ENIs that takes single IPv6 addresses. With a prefix there are addresses
// for any number of pods.
func Few(t *testing.T, instanceType string) Size {
	t.Helper()
	s := Size{Type: instanceType}
	if Families() == ipfamily.OnlyIPv6 {
		s.Type = map[string]string{"t3.small": "t2.small", "m5.large": "c4.large", "m5.xlarge": "m4.xlarge"}[instanceType]
	}
	l, ok := limits.Lookup(s.Type)
	if !ok {
		t.Fatalf("there is no type like %s that takes single addresses of IPv6", instanceType)
	}
	s.ENIs, s.Primary, s.PerENI = l.MaxENIs, l.IPv4PerENI-1, l.IPv4PerENI-1
	if Families() == ipfamily.OnlyIPv6 {
		s.Primary, s.PerENI = 0, l.IPv6PerENI // those of the primary are the instance's own
	}
	return s
}

// Further is the number of pods with addresses on all but the primary ENI.
func (s Size) Further() int { return (s.ENIs - 1) * s.PerENI }

// Room is the number of pods with addresses.
func (s Size) Room() int { return s.Primary + s.Further() }

// Resting is the number of ENIs of a node with one pod.
func (s Size) Resting() int {
	if s.Primary == 0 {
		return 2
	}
	return 1
}

// OwnAddresses are a node's own, one of each family that it has.
func OwnAddresses(t *testing.T, l *lab.Lab, n *node.Node) []netip.Addr {
	t.Helper()
	own := []netip.Addr{PrimaryAddress(t, l, n)}
	if six := ENIs(l, n)[0].IPv6; len(six) > 0 {
		own = append(own, six[0])
	}
	return own
}

// OwnAddress is the one of the family of another address.
func OwnAddress(t *testing.T, l *lab.Lab, n *node.Node, like netip.Addr) netip.Addr {
	t.Helper()
	own := OwnAddresses(t, l, n)
	i := slices.IndexFunc(own, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
	if i < 0 {
		t.Fatalf("%s has %v, none like %s", n.Name, own, like)
	}
	return own[i]
}

// Talk has two pods ask each other, by each of their addresses.
func Talk(t *testing.T, p, other *node.Pod) error {
	t.Helper()
	var errs []error
	if len(p.Addrs) == 0 || len(p.Addrs) != len(other.Addrs) {
		return fmt.Errorf("pods with %v and %v", p.Addrs, other.Addrs)
	}
	for i := range p.Addrs {
		errs = append(errs, Asks(t, p.Netns(), other.Addrs[i], p.Addrs[i]), Asks(t, other.Netns(), p.Addrs[i], other.Addrs[i]))
	}
	return errors.Join(errs...)
}

// Addresses is the number of pods that a NodeNetwork has addresses for, used or not: on each ENI as
// many as it has of the scarcer family.
func Addresses(o *v1alpha1.NodeNetwork) (pods int) {
	enis := map[string]*[ipfamily.Number]int{}
	for text, at := range o.Spec.IPAM.Available {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a := netip.MustParseAddr(text)
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if enis[at.Resource] == nil {
			enis[at.Resource] = &[ipfamily.Number]int{}
		}
		enis[at.Resource][ipfamily.Of(p.Addr())] += 1 << min(p.Addr().BitLen()-p.Bits(), 16)
	}
	for _, has := range enis {
		fewest := math.MaxInt
		for _, f := range ipfamily.Set(o.EffectiveENI().IPFamilies).Families() {
			fewest = min(fewest, has[f])
		}
		pods += fewest
	}
	return pods
}
