package config

import (
	"math"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// WarmSettings are how many addresses of ENIs a node keeps. Negative numbers mean not set.
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
			Doc: "ENIs without a pod to keep attached and filled. Counts as 1 when no other target is set (not with ipam=eni-operator); ignored when a warm IP or minimum IP target is."},
		{Flag: "warm-ip-target", Env: []string{"WARM_IP_TARGET"}, Unit: "addresses", parse: integer(&c.WarmIPTarget, maxCount, -1),
			Doc: "Free addresses to keep assigned to the node."},
		{Flag: "minimum-ip-target", Env: []string{"MINIMUM_IP_TARGET"}, Unit: "addresses", parse: integer(&c.MinimumIPTarget, maxCount, -1),
			Doc: "Addresses to keep assigned to the node at least, used ones included."},
		{Flag: "warm-prefix-target", Env: []string{"WARM_PREFIX_TARGET"}, Unit: "prefixes", parse: integer(&c.WarmPrefixTarget, maxCount, -1),
			Doc: "Unused /28 prefixes to keep assigned to the node, with prefix delegation."},
		{Flag: "enable-prefix-delegation", Env: []string{"ENABLE_PREFIX_DELEGATION"}, Default: "false", bare: true, parse: boolean(&c.PrefixDelegation),
			Doc: "Assign /28 prefixes to ENIs rather than single IPv4 addresses, where the instance type allows it."},
		{Flag: "min-allocate", Unit: "addresses", parse: integer(&c.MinAllocate, maxCount, -1),
			Doc: "Addresses to have assigned to the node at least. With pre-allocate and max-above-watermark, the second way to ask for warm addresses; not to be mixed with the targets above."},
		{Flag: "pre-allocate", Unit: "addresses", parse: integer(&c.PreAllocate, maxCount, -1),
			Doc: "Free addresses to keep assigned to the node. Counts as 8 when another setting of this dialect is set and this one is not, and with ipam=eni-operator when no target is set."},
		{Flag: "max-above-watermark", Unit: "addresses", parse: integer(&c.MaxAboveWatermark, maxCount, -1),
			Doc: "How many addresses more than needed one growth may assign, to save calls."},
		{Flag: "max-allocate", Unit: "addresses", parse: integer(&c.MaxAllocate, maxCount, -1),
			Doc: "Addresses to have assigned to the node at most, in this dialect. Not set or 0: no cap."},
		{Flag: "cooling-period", Env: []string{"IP_COOLDOWN_PERIOD"}, Default: ipam.DefaultCooling.String(), parse: duration(&c.CoolingPeriod, 0, day),
			Doc: "How long a released address is kept from new pods."},
		{Flag: "max-pods", Env: []string{"MAX_PODS"}, Default: "0", Unit: "pods", parse: integer(&c.MaxPods, maxCount, 0),
			Doc: "Most pods with an address of their own on this node: growth stops there. 0 sets no cap."},
	}
}

// ENITimes are how long things take with EC2.
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
			Doc: "How long an address or ENI must be in excess before it goes back to the cloud."},
		{Flag: "listing-interval", Default: "5m", parse: duration(&c.ListingInterval, time.Second, day),
			Doc: "How often everything the cloud holds for this node is listed, to repair what events missed."},
		{Flag: "settle-time", Default: "1m", parse: duration(&c.SettleTime, time.Second, day),
			Doc: "How long a reply of the cloud outranks listings, which may trail it. A change that a crash interrupted is taken up again after it."},
		{Flag: "orphan-age", Default: "15m", parse: duration(&c.OrphanAge, time.Second, 30*day),
			Doc: "How long this process must have seen an ENI of a vanished instance of this cluster detached before it deletes it. A restart begins anew."},
		{Flag: "orphan-interval", Default: "10m", parse: duration(&c.OrphanInterval, time.Second, day),
			Doc: "How often this node looks for such ENIs, at random times around it."},
	}
}

// ENISettings are how ENIs are made.
type ENISettings struct {
	IPFamilies           ipfamily.Set
	MaxENI               int
	FirstInterfaceIndex  int // negative: not set
	Subnets              []string
	SubnetTags           map[string]string
	SecurityGroups       []string
	FollowSecurityGroups bool              // in node mode
	SecurityGroupTags    map[string]string // in operator mode, for the NodeNetwork
	UsePrimaryAddress    bool              // likewise
	TrunkENI             bool              // likewise
	DeleteOnTermination  bool
}

func (c *ENISettings) rows() []Setting {
	return []Setting{
		{Flag: "ip-families", Default: string(ipfamily.OnlyIPv4), parse: oneOf((*string)(&c.IPFamilies), string(ipfamily.OnlyIPv4), string(ipfamily.OnlyIPv6), string(ipfamily.Dual)),
			Doc: "Of which families each pod gets an address: `ipv4`, `ipv6`, or `dual`, one of each, both of the same ENI. IPv6 needs an IPv6 block of the VPC and of the subnets of ENIs; its addresses come as a /80 prefix for each ENI, or one by one where the instance type has no prefixes. With ipam=eni-operator it is what the NodeNetwork object is created with."},
		{Flag: "max-eni", Env: []string{"MAX_ENI"}, Unit: "ENIs", parse: positiveOr(&c.MaxENI, 64, 0),
			Doc: "Most ENIs on this node, the primary included. Not set, 0 or less: what the instance type allows."},
		{Flag: "first-interface-index", parse: integer(&c.FirstInterfaceIndex, 15, -1),
			Doc: "Device index of the first ENI that carries pods. 1 leaves the primary ENI to the node. Counts as 0 when not set, with min-allocate and its like, or ipam=eni-operator, as 1."},
		{Flag: "subnets", Unit: "subnet IDs", parse: list(&c.Subnets, prefixed("subnet-")),
			Doc: "Subnets of new ENIs, separated by commas. Default: the primary ENI's; with ipam=eni-operator, any of the node's VPC and zone."},
		{Flag: "subnet-tags", Unit: "key=value", parse: pairs(&c.SubnetTags),
			Doc: "Tags that choose the subnets of new ENIs in the node's zone, separated by commas; not with subnets."},
		{Flag: "security-groups", Unit: "group IDs", parse: list(&c.SecurityGroups, prefixed("sg-")),
			Doc: "Security groups of new ENIs, separated by commas. Default: the primary ENI's."},
		{Flag: "follow-security-groups", Default: "true", bare: true, parse: boolean(&c.FollowSecurityGroups),
			Doc: "With ipam=eni, without NodeNetworkTemplates, and with security groups configured nowhere else, give ENIs that are there the security groups of the primary ENI whenever these change. Otherwise only new ENIs get them, and the condition `SecurityGroupsFollowed` tells when others differ."},
		{Flag: "security-group-tags", Unit: "key=value", parse: pairs(&c.SecurityGroupTags),
			Doc: "With ipam=eni-operator, tags that choose the security groups of new ENIs in the VPC, separated by commas; not with security-groups."},
		{Flag: "use-primary-address", Default: "false", bare: true, parse: boolean(&c.UsePrimaryAddress),
			Doc: "With ipam=eni-operator, give pods also the primary address of each ENI that carries pods, eth0's excepted."},
		{Flag: "trunk-eni", Default: "false", bare: true, parse: boolean(&c.TrunkENI),
			Doc: "With ipam=eni-operator, have the operator keep a trunk ENI on the instance, for branch interfaces of pods, if its type may have branches. It takes the place of one ENI with addresses for pods."},
		{Flag: "delete-on-termination", Default: "true", bare: true, parse: boolean(&c.DeleteOnTermination),
			Doc: "Have EC2 delete this node's ENIs with the instance. Those that stay are deleted once they were seen detached for orphan-age."},
	}
}

// CiliumDialect tells whether the warm addresses are asked for in Cilium's
// words rather than AWS's.
func (c *Config) CiliumDialect() bool {
	return c.MinAllocate >= 0 || c.PreAllocate >= 0 || c.MaxAboveWatermark >= 0 || c.MaxAllocate >= 0
}

// Policy is the warm-pool policy that the settings ask for: the dialect's
// defaults with what is set in their place.
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

// contradictionsOfNodeMode finds settings that are of a NodeNetwork, which node mode lacks.
func (c *Config) contradictionsOfNodeMode() []error {
	return wrongTogether([]contradiction{
		{len(c.SecurityGroupTags) > 0, "--security-group-tags needs --ipam=eni-operator: in node mode use --security-groups"},
		{c.UsePrimaryAddress, "--use-primary-address needs --ipam=eni-operator"},
		{c.TrunkENI, "--trunk-eni needs --ipam=eni-operator: in node mode nobody makes branches"},
	})
}

// DatapathSettings are those of the node's kernel.
type DatapathSettings struct {
	ExternalSNAT     bool
	IPv4Egress       bool // pods without an IPv4 address get a node-local one
	IPv6Egress       bool // likewise
	ExcludeSNATCIDRs []netip.Prefix
	MTU              int // bytes; 0: the primary link's
	SysctlDir        string
	BlockMetadata    *bool // nil: not set, see BlocksMetadata
	MaxConnections   int   // of one pod; 0: no limit
	MarkShift        int
}

func (c *DatapathSettings) rows() []Setting {
	return []Setting{
		{Flag: "external-snat", Env: []string{"AWS_VPC_K8S_CNI_EXTERNALSNAT"}, Default: "false", bare: true, parse: boolean(&c.ExternalSNAT),
			Doc: "Leave address translation to a NAT gateway: pods leave the VPC with their own address."},
		{Flag: "exclude-snat-cidrs", Env: []string{"AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS"}, parse: cidrs(&c.ExcludeSNATCIDRs),
			Doc: "Networks outside the VPC that see the pod's own address, separated by commas."},
		{Flag: "enable-v4-egress", Env: []string{"ENABLE_V4_EGRESS"}, Default: "true", bare: true, parse: boolean(&c.IPv4Egress),
			Doc: "With ENIs, give pods without an IPv4 address a node-local one, by which they reach the IPv4 world as their node."},
		{Flag: "enable-v6-egress", Env: []string{"ENABLE_V6_EGRESS"}, Default: "false", bare: true, parse: boolean(&c.IPv6Egress),
			Doc: "With ENIs, give pods without an IPv6 address a node-local one, by which they reach the IPv6 world as their node."},
		{Flag: "mtu", Env: []string{"AWS_VPC_ENI_MTU"}, Default: "0", Unit: "bytes", parse: mtu(&c.MTU),
			Doc: "MTU of pod interfaces and secondary ENIs. 0 takes the primary interface's (9001 in a VPC)."},
		{Flag: "block-metadata", bare: true, parse: optional(&c.BlockMetadata),
			Doc: "Keep pods from the instance metadata service, and so from the credentials of the node's role. Default: true."},
		{Flag: "max-connections-per-pod", Default: "0", parse: integer(&c.MaxConnections, math.MaxInt32, 0),
			Doc: "Most connections that a pod may have open by the node's connection tracking; 0: no limit of its own."},
		{Flag: "sysctl-dir", Default: "/proc/sys", parse: absolutePath(&c.SysctlDir, false),
			Doc: "Folder where the kernel's settings are written. A container that is not privileged has /proc/sys read-only; the chart mounts the node's net at another place."},
		{Flag: "mark-shift", Default: "0", Unit: "bits", parse: integer(&c.MarkShift, 24, 0),
			Doc: "Move the eight packet mark bits that Berth uses left, where another program uses the same ones."},
	}
}

// BlocksMetadata tells whether pods are kept from the metadata service, which gives
// the credentials of the instance's role to whoever asks. They are unless the settings
// say otherwise.
func (c *DatapathSettings) BlocksMetadata() bool { return c.BlockMetadata == nil || *c.BlockMetadata }
