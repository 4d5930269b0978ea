package spec

import (
	"cmp"
	"net/netip"
	"time"
)

// DefaultAccessKey returns the default static key of a spec. It has all permissions, which is fine for a lab.
func DefaultAccessKey() AccessKey {
	return AccessKey{ID: "AKIALABLABLABLABLAB1", Secret: "lab-secret-access-key-that-opens-only-the-lab", Actions: []string{"*"}}
}

// Default returns a spec with one VPC, two subnets in two zones, a security group that allows traffic
// within the VPC, and two m5.large nodes whose role has all permissions. Describe calls lag by 200 ms;
// attaching and detaching take about as long.
func Default() Spec {
	return Spec{
		VPCs: []VPC{{
			Name:  "lab",
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
			Subnets: []Subnet{
				{Name: "a", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.0.0/22")},
				{Name: "b", Zone: "lab-1b", CIDR: netip.MustParsePrefix("10.0.4.0/22")},
			},
			SecurityGroups: []SecurityGroup{{
				Name:        "default",
				Description: "traffic within the VPC and to anywhere",
				Ingress:     []Rule{{Protocol: "-1", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}},
			}},
		}},
		Instances: []Instance{
			{Name: "node-a", Type: "m5.large", Subnet: "a", Role: "node"},
			{Name: "node-b", Type: "m5.large", Subnet: "b", Role: "node"},
		},
		Roles: []Role{{Name: "node", Actions: []string{"*"}}},
		Delays: Delays{
			Attach: Duration(200 * time.Millisecond),
			Link:   Duration(300 * time.Millisecond),
			Detach: Duration(200 * time.Millisecond),
		},
		// EC2 is eventually consistent (EC2 Developer Guide, "Eventual consistency"): clients that rely on
		// seeing their changes immediately must fail here too.
		Consistency: Consistency{Describe: Duration(200 * time.Millisecond)},
	}
}

// withDefaults fills missing fields.
func (s Spec) withDefaults() Spec {
	s.Region = cmp.Or(s.Region, "lab-1")
	s.Account = cmp.Or(s.Account, "123456789012")
	s.Seed = cmp.Or(s.Seed, 1)
	s.IMDS.CredentialTTL = cmp.Or(s.IMDS.CredentialTTL, Duration(6*time.Hour))
	s.Quotas.NetworkInterfaces = cmp.Or(s.Quotas.NetworkInterfaces, 5000)
	s.Throttle = cmp.Or(s.Throttle, "documented")
	if len(s.AccessKeys) == 0 {
		s.AccessKeys = []AccessKey{DefaultAccessKey()}
	}
	if s.IMDS.V1 == nil {
		on := true
		s.IMDS.V1 = &on
	}
	return s
}
