package providers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/vpcport"
)

// lookTimeout bounds a look: two calls, and maybe another one for a token.
const lookTimeout = 30 * time.Second

// lookup is the result of a look.
type lookup struct {
	network vpcport.Network
	project string
	why     *problem      // nil: the network was found
	class   vpcport.Class // of why, if a call failed
	after   time.Duration // how long the provider asked to wait; 0: it did not
}

// look asks the provider for the network, and for the project of the credentials.
func look(ctx context.Context, spec v1alpha1.VPCSpec, p vpcport.Provider) lookup {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var s lookup
	var err error
	if s.network, err = p.Network(ctx, spec.Network); err == nil {
		s.project, err = p.Project(ctx) // of the token by which the network was seen
	}
	if err != nil {
		s.why, s.class = problemOf(spec, err), vpcport.ClassOf(err)
		if e, ok := errors.AsType[*vpcport.Error](err); ok {
			s.after = e.RetryAfter
		}
	}
	return s
}

// complaint is a problem of a network that was found: some pods get no address there. It affects only those
// pods.
func complaint(spec v1alpha1.VPCSpec, n vpcport.Network) *problem {
	if spec.EC2 != nil && len(spec.EC2.Subnets) > 0 && len(n.Subnets) > 0 && !slices.ContainsFunc(n.Subnets, func(s vpcport.Subnet) bool { return mayBeIn(spec, s) }) {
		return &problem{ofNetwork, ReasonNoSubnet, fmt.Sprintf("spec.ec2.subnets: none of them is a subnet of %s%s: a NIC gets no address", n.ID, ofFamilies(spec))}
	}
	if ipfamily.Set(spec.IPFamilies()).Has(ipfamily.IPv6) && !slices.ContainsFunc(n.Subnets, func(s vpcport.Subnet) bool { return hasIPv6(s) && mayBeIn(spec, s) }) {
		return &problem{ofNetwork, ReasonNoSubnet, fmt.Sprintf("spec.ec2.ipFamilies: is %s, and none of the subnets of %s where NICs may be has an IPv6 CIDR block: a NIC gets no address", spec.IPFamilies(), n.ID)}
	}
	if len(n.Subnets) == 0 {
		return &problem{ofNetwork, ReasonNoSubnet, fmt.Sprintf("network %s has no subnet%s: a NIC there gets no address", n.ID, ofFamilies(spec))}
	}
	for i, want := range spec.DefaultSubnets {
		var is int
		var names []string
		for _, s := range n.Subnets {
			if s.ID == want || s.Name == want {
				is++
			}
			names = append(names, strings.TrimSpace(s.Name+" "+s.ID))
		}
		if is != 1 {
			return &problem{ofNetwork, ReasonSubnetNotFound, fmt.Sprintf("spec.defaultSubnets[%d]: %d subnets of network %s are %s by ID or name, expected one of %s", i, is, n.ID, want, strings.Join(names, ", "))}
		}
	}
	return nil
}

// ofFamilies is the part of a message that says which addresses a subnet of EC2 must have.
func ofFamilies(spec v1alpha1.VPCSpec) string {
	if spec.Provider != v1alpha1.ProviderEC2 {
		return ""
	}
	family := ipfamily.IPv4
	if !ipfamily.Set(spec.IPFamilies()).Has(family) {
		family = ipfamily.IPv6
	}
	return fmt.Sprintf(" that has %s addresses", family)
}

// mayBeIn reports whether NICs of EC2 that name no subnet may be in s.
func mayBeIn(spec v1alpha1.VPCSpec, s vpcport.Subnet) bool {
	return spec.EC2 == nil || len(spec.EC2.Subnets) == 0 || slices.Contains(spec.EC2.Subnets, s.ID)
}

func hasIPv6(s vpcport.Subnet) bool { return s.CIDR.Addr().Is6() || s.IPv6CIDR.IsValid() }
