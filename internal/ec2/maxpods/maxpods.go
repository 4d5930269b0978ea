// Package maxpods computes how many pods an instance type can run, for the kubelet's --max-pods.
package maxpods

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// HostPods is the number of host-network pods that EKS adds (AWS, best practices for the Amazon VPC CNI).
const HostPods = 2

// The maximum numbers of pods on a node that EKS recommends, with up to 30 processors and with more (max-pods calculator of
// the Amazon EKS AMI).
const (
	FewProcessors  = 110
	ManyProcessors = 250
)

// Options are the settings, other than the instance type, that affect the number.
type Options struct {
	Prefixes bool // /28 prefixes instead of single IPv4 addresses
	Families ipfamily.Set
	First    int // lowest device index whose ENI serves pods
	Trunk    bool
	MaxENI   int // maximum number of ENIs, the primary one included; 0: the instance type's limit
	// Free is the number of free addresses in the subnet of the instance's new ENIs, if HasFree is set. The instance
	// itself already runs in the subnet.
	Free    int
	HasFree bool
}

// Capacity is how many pods an instance type can run.
type Capacity struct {
	InstanceType string `json:"instanceType"`
	ENIs         int    `json:"enis"`            // that serve pods
	PerENI       int    `json:"addressesPerENI"` // usable by pods
	Addresses    int    `json:"addresses"`       // usable by pods, on all ENIs
	// MaxPods is the least of what addresses allow, what EKS recommends and what the subnet has addresses for.
	MaxPods  int  `json:"maxPods"`
	Prefixes bool `json:"prefixes"`

	IPFamilies ipfamily.Set `json:"ipFamilies"`
	Unlimited  bool         `json:"unlimited,omitempty"` // addresses do not limit the number; the counts of addresses are 0

	Allowed     int `json:"allowed,omitempty"`     // what addresses of ENIs allow; 0 if unlimited
	Recommended int `json:"recommended"`           // FewProcessors or ManyProcessors
	Subnet      int `json:"subnetAllows,omitzero"` // with Options.HasFree, what the subnet has addresses for
}

// Limit returns what MaxPods is limited by: "addresses", "processors" or "subnet".
func (c Capacity) Limit() string {
	switch {
	case c.Subnet > 0 && c.MaxPods == c.Subnet && (c.Unlimited || c.Subnet < c.Allowed) && c.Subnet < c.Recommended:
		return "subnet"
	case c.Unlimited || c.Recommended < c.Allowed:
		return "processors"
	}
	return "addresses"
}

// enis returns the number of ENIs that serve pods from a device index on. A trunk ENI takes one of them, unless an
// index below o.First is free for it.
func (o Options) enis(l cloud.Limits, from int) int {
	n := l.MaxENIs
	if o.MaxENI > 0 {
		n = min(n, o.MaxENI)
	}
	n -= from
	if o.Trunk && o.First < 2 {
		n--
	}
	return max(0, n)
}

// Of returns the number of pods that an instance type can run. It fails if the type does not support the options.
func Of(instanceType string, o Options) (Capacity, error) {
	l, err := LimitsOf(instanceType)
	if err != nil {
		return Capacity{}, err
	}
	switch s := o.Families; {
	case o.Prefixes && !l.Prefixes:
		return Capacity{}, fmt.Errorf("%s has no prefixes: it is not a Nitro instance type", instanceType)
	case s.Has(ipfamily.IPv6) && l.IPv6PerENI == 0:
		return Capacity{}, fmt.Errorf("%s has no IPv6: use another instance type, or --ip-families=ipv4", instanceType)
	case o.First < 0 || o.First >= l.MaxENIs:
		return Capacity{}, fmt.Errorf("--first-interface-index is %d: expected 0 to %d, as %s has %d ENIs", o.First, l.MaxENIs-1, instanceType, l.MaxENIs)
	case o.Trunk && limits.Branches(instanceType) == 0:
		return Capacity{}, fmt.Errorf("%s has no known support for branch interfaces: use another instance type, or omit --trunk-eni", instanceType)
	case o.MaxENI < 0:
		return Capacity{}, fmt.Errorf("--max-eni is %d: expected 0 or more", o.MaxENI)
	}
	c := o.byAddresses(instanceType, l)
	c.Recommended = FewProcessors
	if HasManyProcessors(instanceType) {
		c.Recommended = ManyProcessors
	}
	c.MaxPods = c.Recommended
	if !c.Unlimited {
		c.Allowed = c.Addresses + HostPods
		c.MaxPods = min(c.MaxPods, c.Allowed)
	}
	if o.HasFree && o.Families.Has(ipfamily.IPv4) {
		first := o.First
		if o.Families == ipfamily.Dual && !l.Prefixes {
			first = max(1, first) // as in byAddresses
		}
		c.Subnet = o.podsOf(c, first) + HostPods
		c.MaxPods = min(c.MaxPods, c.Subnet)
	}
	return c, nil
}

// byAddresses counts what the ENIs have addresses for.
func (o Options) byAddresses(instanceType string, l cloud.Limits) Capacity {
	s := o.Families
	c := Capacity{InstanceType: instanceType, ENIs: o.enis(l, o.First), PerENI: l.IPv4PerENI - 1, Prefixes: o.Prefixes, IPFamilies: s}
	if o.Prefixes {
		c.PerENI *= ipam.PrefixAddresses
	}
	switch {
	case s == ipfamily.OnlyIPv6 && l.Prefixes:
		return Capacity{InstanceType: instanceType, ENIs: c.ENIs, Prefixes: true, IPFamilies: s, Unlimited: true}
	case s == ipfamily.OnlyIPv6:
		c.ENIs, c.PerENI = o.enis(l, max(1, o.First)), l.IPv6PerENI
	case s == ipfamily.Dual && !l.Prefixes:
		c.ENIs, c.PerENI = o.enis(l, max(1, o.First)), min(c.PerENI, l.IPv6PerENI)
	}
	c.Addresses = c.ENIs * c.PerENI
	return c
}

// podsOf returns how many pods the free addresses of the subnet suffice for, if the ENIs from a device index on serve
// pods. Each further ENI, such as a trunk, takes one of them for itself; the primary ENI has its own already.
func (o Options) podsOf(c Capacity, first int) int {
	free, pods := o.Free, 0
	if o.Trunk {
		free--
	}
	for i := range c.ENIs {
		if i+first > 0 { // not the primary ENI
			free--
		}
		room := min(c.PerENI, max(0, free))
		if o.Prefixes {
			room -= room % ipam.PrefixAddresses
		}
		pods, free = pods+room, free-room
	}
	return pods
}

// LimitsOf looks up an instance type. The error suggests types of the same family.
func LimitsOf(instanceType string) (cloud.Limits, error) {
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

// fewer are the instance types that have up to 30 virtual processors although their names say otherwise (EC2 instance
// type specifications).
var fewer = map[string]bool{"a1.metal": true, "hs1.8xlarge": true, "hpc7a.12xlarge": true}

// HasManyProcessors reports whether an instance type has more than 30 virtual processors. The table of limits does not
// have their number. It follows from the size: Nxlarge has 4N (EC2, "Instance type names"), and so does metal-Nxl.
// Bare metal without a number is a whole host, which has more than 30 except for Macs and those in fewer.
func HasManyProcessors(instanceType string) bool {
	family, size, _ := strings.Cut(instanceType, ".")
	if fewer[instanceType] {
		return false
	}
	if size == "metal" {
		return !strings.HasPrefix(family, "mac")
	}
	n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(size, "metal-"), "arge"), "xl"))
	return err == nil && 4*n > 30
}
