package ctl

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// hostPods is the number of host-network pods that EKS adds to max-pods (AWS, best practices for the Amazon VPC CNI).
const hostPods = 2

// kubernetesMax is the maximum number of pods per node that Kubernetes recommends
// ("Considerations for large clusters"). EKS allows 250 on instances with 30 or more vCPUs.
const kubernetesMax = 110

// capacity is the output of `max-pods -o json`.
type capacity struct {
	InstanceType string `json:"instanceType"`
	ENIs         int    `json:"enis"`            // that serve pods
	PerENI       int    `json:"addressesPerENI"` // usable by pods
	Addresses    int    `json:"addresses"`       // usable by pods, on all ENIs
	MaxPods      int    `json:"maxPods"`
	Prefixes     bool   `json:"prefixes"`

	IPFamilies ipfamily.Set `json:"ipFamilies"`
	Unlimited  bool         `json:"unlimited,omitempty"` // addresses are no limit; the counts of addresses are 0
}

func newMaxPods() *cobra.Command {
	var instanceType string
	var o capacityOptions
	var families string
	var out format
	cmd := &cobra.Command{
		Use:   "max-pods",
		Short: "Compute how many pods an instance type can run",
		Long: `Compute how many pods an instance type can run, for the kubelet's --max-pods:
ENIs × (addresses per ENI − 1) + 2. An ENI's primary address serves no pod; the 2 are
host-network pods, which need no address. With prefixes, each address except the primary
one is a /28 of 16 addresses.

IPv6 is no limit, because each ENI has a /80: for dual-stack pods the number is that of
IPv4. Instance types without prefixes have single IPv6 addresses, and those of the primary
ENI are the node's own: (ENIs − 1) × addresses per ENI + 2, for the family with fewer
addresses.

If pods use other subnets than their node, eth0 serves none: --first-interface-index=1.
A trunk for branch interfaces takes the place of an ENI: --trunk-eni.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := ipfamily.Parse(families)
			if err != nil {
				return fmt.Errorf("--ip-families: %w", err)
			}
			o.families = set
			c, err := capacityOf(instanceType, o)
			if err != nil {
				return err
			}
			if out == jsonFmt {
				return view.WriteJSON(cmd.OutOrStdout(), c)
			}
			p := &view.Printer{W: cmd.OutOrStdout()}
			if c.Unlimited {
				p.Printf("%s: %d pods, the maximum that Kubernetes recommends; EKS allows 250 with 30 or more vCPUs\nIPv6 addresses are no limit: one prefix has 2^48\n", c.InstanceType, c.MaxPods)
				return p.Err
			}
			p.Printf("%s: %d pods\n%d ENIs × %d usable addresses = %d, and %d host-network pods\n",
				c.InstanceType, c.MaxPods, c.ENIs, c.PerENI, c.Addresses, hostPods)
			if c.MaxPods > kubernetesMax {
				p.Printf("Kubernetes recommends at most %d pods per node; EKS allows 250 with 30 or more vCPUs.\n", kubernetesMax)
			}
			return p.Err
		},
	}
	registerType(cmd, &instanceType)
	cmd.Flags().BoolVar(&o.prefixes, "prefix-delegation", false, "assign /28 prefixes instead of single IPv4 addresses")
	cmd.Flags().StringVar(&families, "ip-families", string(ipfamily.OnlyIPv4), "address families of pods: ipv4, ipv6 or dual")
	cmd.Flags().IntVar(&o.first, "first-interface-index", 0, "lowest device index whose ENI serves pods; 1 leaves eth0 to the node")
	cmd.Flags().BoolVar(&o.trunk, "trunk-eni", false, "reserve one ENI as a trunk; its branch interfaces are not counted")
	out.register(cmd)
	return cmd
}

// capacityOptions are the settings that max-pods depends on, besides the instance type.
type capacityOptions struct {
	prefixes bool // /28 prefixes instead of single IPv4 addresses
	families ipfamily.Set
	first    int // lowest device index whose ENI serves pods
	trunk    bool
}

// enis returns the number of ENIs that serve pods from a device index on. A trunk ENI
// takes one of them, unless an index below o.first is free for it.
func (o capacityOptions) enis(l cloud.Limits, from int) int {
	n := l.MaxENIs - from
	if o.trunk && o.first < 2 {
		n--
	}
	return n
}

func registerType(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "instance-type", "", "EC2 instance type, such as m5.large")
	_ = cmd.MarkFlagRequired("instance-type")
}

// capacityOf returns how many pods an instance type can run. It fails if the type lacks
// what the options ask for.
func capacityOf(instanceType string, o capacityOptions) (capacity, error) {
	prefixes, s := o.prefixes, o.families
	l, err := limitsOf(instanceType)
	if err != nil {
		return capacity{}, err
	}
	if prefixes && !l.Prefixes {
		return capacity{}, fmt.Errorf("%s has no prefixes: it is not a Nitro instance type", instanceType)
	}
	if s.Has(ipfamily.IPv6) && l.IPv6PerENI == 0 {
		return capacity{}, fmt.Errorf("%s has no IPv6: use another instance type, or --ip-families=ipv4", instanceType)
	}
	if o.first < 0 || o.first >= l.MaxENIs {
		return capacity{}, fmt.Errorf("--first-interface-index is %d: expected 0 to %d, as %s has %d ENIs", o.first, l.MaxENIs-1, instanceType, l.MaxENIs)
	}
	if o.trunk && limits.Branches(instanceType) == 0 {
		return capacity{}, fmt.Errorf("%s has no known support for branch interfaces: use another instance type, or omit --trunk-eni", instanceType)
	}
	c := capacity{InstanceType: instanceType, ENIs: o.enis(l, o.first), PerENI: l.IPv4PerENI - 1, Prefixes: prefixes, IPFamilies: s}
	if prefixes {
		c.PerENI *= ipam.PrefixAddresses
	}
	switch {
	case s == ipfamily.OnlyIPv6 && l.Prefixes:
		return capacity{InstanceType: instanceType, ENIs: o.enis(l, o.first), MaxPods: kubernetesMax, Prefixes: true, IPFamilies: s, Unlimited: true}, nil
	case s == ipfamily.OnlyIPv6:
		c.ENIs, c.PerENI = o.enis(l, max(1, o.first)), l.IPv6PerENI
	case s == ipfamily.Dual && !l.Prefixes:
		c.ENIs, c.PerENI = o.enis(l, max(1, o.first)), min(c.PerENI, l.IPv6PerENI)
	}
	c.Addresses = c.ENIs * c.PerENI
	c.MaxPods = c.Addresses + hostPods
	return c, nil
}

// limitsOf looks up an instance type. The error suggests types of the same family.
func limitsOf(instanceType string) (cloud.Limits, error) {
	if l, ok := limits.Lookup(instanceType); ok {
		return l, nil
	}
	family, _, _ := strings.Cut(instanceType, ".")
	var near []string
	for e := range limits.All() {
		if strings.HasPrefix(e.Type, family+".") {
			near = append(near, e.Type)
		}
	}
	if len(near) == 0 {
		return cloud.Limits{}, fmt.Errorf("instance type %q is unknown, expected one such as m5.large", instanceType)
	}
	return cloud.Limits{}, fmt.Errorf("instance type %q is unknown; known types of its family: %s", instanceType, strings.Join(near, ", "))
}
