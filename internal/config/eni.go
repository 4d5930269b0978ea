package config

import (
	"math"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// WarmSettings define how many addresses of ENIs a node keeps. Negative numbers mean not set.
type WarmSettings struct {
	// The AWS dialect.
	WarmENITarget    int
	WarmIPTarget     int
	MinimumIPTarget  int
	WarmPrefixTarget int
	PrefixDelegation bool
	// The Cilium dialect.
	MinAllocate       int
	PreAllocate       int
	MaxAboveWatermark int
	MaxAllocate       int

	CoolingPeriod time.Duration
	MaxPods       int // 0: no cap
}

func (c *WarmSettings) rows() []Setting {
	return []Setting{
		{Flag: "warm-eni-target", Env: []string{"WARM_ENI_TARGET"}, Unit: "ENIs", parse: integer(&c.WarmENITarget, 64, -1),
			Doc: "ENIs without pods to keep attached with all their addresses. 1 if no other target is set (except with ipam=eni-operator). Ignored if warm-ip-target or minimum-ip-target is set."},
		{Flag: "warm-ip-target", Env: []string{"WARM_IP_TARGET"}, Unit: "addresses", parse: integer(&c.WarmIPTarget, maxCount, -1),
			Doc: "Free addresses to keep assigned to the node."},
		{Flag: "minimum-ip-target", Env: []string{"MINIMUM_IP_TARGET"}, Unit: "addresses", parse: integer(&c.MinimumIPTarget, maxCount, -1),
			Doc: "Minimum of addresses to keep assigned to the node, including used ones."},
		{Flag: "warm-prefix-target", Env: []string{"WARM_PREFIX_TARGET"}, Unit: "prefixes", parse: integer(&c.WarmPrefixTarget, maxCount, -1),
			Doc: "Unused /28 prefixes to keep assigned to the node, with prefix delegation."},
		{Flag: "enable-prefix-delegation", Env: []string{"ENABLE_PREFIX_DELEGATION"}, Default: "false", bare: true, parse: boolean(&c.PrefixDelegation),
			Doc: "Assign /28 prefixes to ENIs rather than single IPv4 addresses, where the instance type allows it."},
		{Flag: "min-allocate", Unit: "addresses", parse: integer(&c.MinAllocate, maxCount, -1),
			Doc: "Minimum of addresses to keep assigned to the node. Together with pre-allocate and max-above-watermark this is the second dialect for warm addresses, which cannot be mixed with the targets above."},
		{Flag: "pre-allocate", Unit: "addresses", parse: integer(&c.PreAllocate, maxCount, -1),
			Doc: "Free addresses to keep assigned to the node. If not set, 8 when another setting of this dialect is set, and with ipam=eni-operator when no target is set."},
		{Flag: "max-above-watermark", Unit: "addresses", parse: integer(&c.MaxAboveWatermark, maxCount, -1),
			Doc: "How many addresses beyond the need one growth may assign, to save calls."},
		{Flag: "max-allocate", Unit: "addresses", parse: integer(&c.MaxAllocate, maxCount, -1),
			Doc: "Maximum of addresses assigned to the node, in this dialect. Not set or 0: no cap."},
		{Flag: "cooling-period", Env: []string{"IP_COOLDOWN_PERIOD"}, Default: ipam.DefaultCooling.String(), parse: duration(&c.CoolingPeriod, 0, day),
			Doc: "How long a released address is withheld from new pods."},
		{Flag: "max-pods", Env: []string{"MAX_PODS"}, Default: "0", Unit: "pods", parse: integer(&c.MaxPods, maxCount, 0),
			Doc: "Maximum of pods with an address of their own on this node, at which growth stops. 0: no cap."},
	}
}

// ENITimes are the intervals and delays for EC2.
type ENITimes struct {
	ShrinkDelay     time.Duration
	ListingInterval time.Duration
	SettleTime      time.Duration
	OrphanAge       time.Duration
	OrphanInterval  time.Duration
}

func (c *ENITimes) rows() []Setting {
	return []Setting{
		{Flag: "shrink-delay", Default: "1m", parse: duration(&c.ShrinkDelay, time.Millisecond, day),
			Doc: "How long an address or ENI must be in excess before it is released to EC2."},
		{Flag: "listing-interval", Default: "5m", parse: duration(&c.ListingInterval, time.Second, day),
			Doc: "How often all ENIs and addresses of this node are listed at EC2, to find changes that events missed."},
		{Flag: "settle-time", Default: "1m", parse: duration(&c.SettleTime, time.Second, day),
			Doc: "How long a reply of EC2 takes precedence over listings, which may lag behind. A change that a crash interrupted is resumed after this time."},
		{Flag: "orphan-age", Default: "15m", parse: duration(&c.OrphanAge, time.Second, 30*day),
			Doc: "How long this process must have seen a detached ENI of a vanished instance of this cluster before it deletes the ENI. A restart starts over."},
		{Flag: "orphan-interval", Default: "10m", parse: duration(&c.OrphanInterval, time.Second, day),
			Doc: "How often this node looks for such ENIs, on average."},
	}
}

// ENISettings define how ENIs are made.
type ENISettings struct {
	IPFamilies           ipfamily.Set
	MaxENI               int
	FirstInterfaceIndex  int // negative: not set
	Subnets              []string
	SubnetTags           map[string]string
	SecurityGroups       []string
	FollowSecurityGroups bool              // in node mode
	SecurityGroupTags    map[string]string // in operator mode, for the NodeNetwork
	UsePrimaryAddress    bool              // in operator mode, for the NodeNetwork
	TrunkENI             bool              // in operator mode, for the NodeNetwork
	DeleteOnTermination  bool
	AdoptENIs            []string
}

// adoptable are the systems whose ENIs can be adopted.
var adoptable = []string{"amazon-vpc-cni", "cilium"}

func (c *ENISettings) rows() []Setting {
	return []Setting{
		{Flag: "ip-families", Default: string(ipfamily.OnlyIPv4), parse: oneOf((*string)(&c.IPFamilies), string(ipfamily.OnlyIPv4), string(ipfamily.OnlyIPv6), string(ipfamily.Dual)),
			Doc: "Address families of pods: `ipv4`, `ipv6`, or `dual`, one address of each from the same ENI. IPv6 needs an IPv6 block of the VPC and of the ENIs' subnets. IPv6 addresses come as a /80 prefix for each ENI, or individually where the instance type has no prefixes. With ipam=eni-operator this is the value of a NodeNetwork object that the daemon creates."},
		{Flag: "max-eni", Env: []string{"MAX_ENI"}, Unit: "ENIs", parse: positiveOr(&c.MaxENI, 64, 0),
			Doc: "Maximum of ENIs on this node, including the primary ENI. Not set, 0 or less: the limit of the instance type."},
		{Flag: "first-interface-index", parse: integer(&c.FirstInterfaceIndex, 15, -1),
			Doc: "Device index of the first ENI with addresses for pods. 1 reserves the primary ENI for the node. If not set, 0; with the min-allocate dialect or ipam=eni-operator, 1."},
		{Flag: "subnets", Unit: "subnet IDs", parse: list(&c.Subnets, prefixed("subnet-")),
			Doc: "Subnets of new ENIs, separated by commas. Default: the primary ENI's subnet; with ipam=eni-operator, any subnet of the node's VPC and zone."},
		{Flag: "subnet-tags", Unit: "key=value", parse: pairs(&c.SubnetTags),
			Doc: "Tags that select the subnets of new ENIs in the node's zone, separated by commas. Not with subnets."},
		{Flag: "security-groups", Unit: "group IDs", parse: list(&c.SecurityGroups, prefixed("sg-")),
			Doc: "Security groups of new ENIs, separated by commas. Default: the primary ENI's."},
		{Flag: "follow-security-groups", Default: "true", bare: true, parse: boolean(&c.FollowSecurityGroups),
			Doc: "With ipam=eni, and if neither this configuration nor a NodeNetworkTemplate sets security groups, update existing ENIs whenever the security groups of the primary ENI change. Otherwise only new ENIs get these, and the condition `SecurityGroupsFollowed` reports ENIs that differ."},
		{Flag: "security-group-tags", Unit: "key=value", parse: pairs(&c.SecurityGroupTags),
			Doc: "With ipam=eni-operator, tags that select the security groups of new ENIs in the VPC, separated by commas. Not with security-groups."},
		{Flag: "use-primary-address", Default: "false", bare: true, parse: boolean(&c.UsePrimaryAddress),
			Doc: "With ipam=eni-operator, also give pods the primary address of each ENI with addresses for pods, except for eth0."},
		{Flag: "trunk-eni", Default: "false", bare: true, parse: boolean(&c.TrunkENI),
			Doc: "With ipam=eni-operator, let the operator keep a trunk ENI on the instance for branch interfaces of pods, if the instance type supports them. It takes the place of one ENI with addresses for pods."},
		{Flag: "adopt-enis", parse: list(&c.AdoptENIs, among(adoptable...)),
			Doc: "Other systems whose ENIs of this instance Berth uses like its own, separated by commas: `amazon-vpc-cni`, `cilium`. Their pods' addresses stay with their pods, and Berth adds its tags where its IAM policy permits that. For the migration from that system, and for as long as such ENIs are attached."},
		{Flag: "delete-on-termination", Default: "true", bare: true, parse: boolean(&c.DeleteOnTermination),
			Doc: "Let EC2 delete this node's ENIs together with the instance. ENIs that remain are deleted once they have been detached for orphan-age."},
	}
}

// CiliumDialect reports whether the settings for warm addresses belong to Cilium's dialect rather than to AWS's.
func (c *Config) CiliumDialect() bool {
	return c.MinAllocate >= 0 || c.PreAllocate >= 0 || c.MaxAboveWatermark >= 0 || c.MaxAllocate >= 0
}

// Policy is the warm-pool policy of the settings: the defaults of the dialect, with the given values.
func (c *Config) Policy() ipam.Policy {
	p := ipam.DefaultAWS()
	if c.CiliumDialect() {
		p = ipam.DefaultCilium()
	}
	for _, v := range []struct {
		to  *int
		set int
	}{
		{&p.WarmENI, c.WarmENITarget}, {&p.WarmIP, c.WarmIPTarget}, {&p.MinimumIP, c.MinimumIPTarget}, {&p.WarmPrefix, c.WarmPrefixTarget},
		{&p.MinAllocate, c.MinAllocate}, {&p.PreAllocate, c.PreAllocate}, {&p.MaxAboveWatermark, c.MaxAboveWatermark}, {&p.MaxAllocate, c.MaxAllocate},
		{&p.FirstInterfaceIndex, c.FirstInterfaceIndex},
	} {
		if v.set >= 0 {
			*v.to = v.set
		}
	}
	p.MaxENI, p.MaxPods, p.PrefixDelegation, p.Families = c.MaxENI, c.MaxPods, c.PrefixDelegation, c.IPFamilies
	return p
}

// contradictionsOfNodeMode finds settings that belong to a NodeNetwork, which node mode lacks.
func (c *Config) contradictionsOfNodeMode() []error {
	return wrongTogether([]contradiction{
		{len(c.SecurityGroupTags) > 0, "--security-group-tags needs --ipam=eni-operator: in node mode use --security-groups"},
		{c.UsePrimaryAddress, "--use-primary-address needs --ipam=eni-operator"},
		{c.TrunkENI, "--trunk-eni needs --ipam=eni-operator: there are no branch interfaces in node mode"},
	})
}

// DatapathSettings are the settings of the node's kernel.
type DatapathSettings struct {
	ExternalSNAT     bool
	IPv4Egress       bool // pods without an IPv4 address get a node-local one
	IPv6Egress       bool // pods without an IPv6 address get a node-local one
	ExcludeSNATCIDRs []netip.Prefix
	MTU              int // bytes; 0: the primary link's
	SysctlDir        string
	BlockMetadata    *bool // nil: not set, see BlocksMetadata
	MaxConnections   int   // limit of one pod; 0: none
	MarkShift        int
}

func (c *DatapathSettings) rows() []Setting {
	return []Setting{
		{Flag: "external-snat", Env: []string{"AWS_VPC_K8S_CNI_EXTERNALSNAT"}, Default: "false", bare: true, parse: boolean(&c.ExternalSNAT),
			Doc: "Do not translate addresses on the node: pods leave the VPC with their own address, which a NAT gateway translates."},
		{Flag: "exclude-snat-cidrs", Env: []string{"AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS"}, parse: cidrs(&c.ExcludeSNATCIDRs),
			Doc: "Networks outside the VPC that pods reach with their own address, without NAT, separated by commas."},
		{Flag: "enable-v4-egress", Env: []string{"ENABLE_V4_EGRESS"}, Default: "true", bare: true, parse: boolean(&c.IPv4Egress),
			Doc: "With ENIs, give pods without an IPv4 address a node-local one, through which they reach IPv4 networks by NAT to the node's address."},
		{Flag: "enable-v6-egress", Env: []string{"ENABLE_V6_EGRESS"}, Default: "false", bare: true, parse: boolean(&c.IPv6Egress),
			Doc: "With ENIs, give pods without an IPv6 address a node-local one, through which they reach IPv6 networks by NAT to the node's address."},
		{Flag: "mtu", Env: []string{"AWS_VPC_ENI_MTU"}, Default: "0", Unit: "bytes", parse: mtu(&c.MTU),
			Doc: "MTU of pod interfaces and secondary ENIs. 0: that of the primary interface (9001 in a VPC)."},
		{Flag: "block-metadata", bare: true, parse: optional(&c.BlockMetadata),
			Doc: "Block pods' access to the instance metadata service, and so to the credentials of the node's role. Default: true."},
		{Flag: "max-connections-per-pod", Default: "0", parse: integer(&c.MaxConnections, math.MaxInt32, 0),
			Doc: "Maximum of connections of a pod in the node's connection tracking. 0: no limit per pod."},
		{Flag: "sysctl-dir", Default: "/proc/sys", parse: absolutePath(&c.SysctlDir, false),
			Doc: "Folder through which kernel settings are written. An unprivileged container has /proc/sys read-only; the chart mounts the node's net settings elsewhere."},
		{Flag: "mark-shift", Default: "0", Unit: "bits", parse: integer(&c.MarkShift, 24, 0),
			Doc: "Shift the eight packet mark bits that Berth uses to the left, if another program uses the same bits."},
	}
}

// BlocksMetadata reports whether pods are kept from the metadata service, which hands out the credentials of the
// instance's role to any caller. Default: true.
func (c *DatapathSettings) BlocksMetadata() bool { return c.BlockMetadata == nil || *c.BlockMetadata }
