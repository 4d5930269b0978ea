// Package datapath programs the Linux kernel of one node: pod links, policy routing, ENI tables, sysctls and packet
// filtering (the pod side and the rule priorities follow the proposal for the Amazon VPC CNI). It speaks netlink and
// nftables only, runs no program, and knows nothing of Kubernetes or a cloud.
//
// docs/contribute/data-path.md, "Data path", lists the rules, chains and routes. The number of policy rules depends on the
// number of ENIs, not of pods. Their marks are set on packets from pod links, after DNAT, so that the packet's real
// destination decides and not a Service's address. The ENI of a source address is found by one hash lookup in a map
// that is filled when the ENI is set up, so adding a pod changes routes only.
//
// # Ownership
//
// Berth's own objects can be recognized: routes and rules carry Protocol, pod links are veths named LinkPrefix + 12
// characters in a link group of Berth's own, and filtering is in the table named NftTable. This package changes and
// removes nothing else, except the sysctls that Setup names.
package datapath

import "github.com/berthnet/berth/internal/kernel/rtnl"

// Numbers that identify Berth's state in the kernel.
const (
	// Protocol marks every route and rule that Berth makes (rtnetlink's
	// rtm_protocol and FRA_PROTOCOL).
	Protocol = rtnl.Protocol

	// PodTable is the routing table that holds one route for each pod address,
	// and the unreachable ones of blocks.
	PodTable = 19000
	// UplinkTableBase plus an uplink's number is its table.
	UplinkTableBase = 19000
	// MaxUplink is the highest number of an uplink: the mark has six bits for it, whose last
	// values are notePrimary and those of branches.
	MaxUplink = notePrimary - 1

	// LinkPrefix begins the name of every pod link on the host side.
	LinkPrefix = "bth"
	// NftTable is the name of Berth's nftables tables (families inet and arp).
	NftTable = "berth"
)

// Priorities of the policy rules (proposal for the Amazon VPC CNI: 512, 1025 and 1536; 1024 is
// for connections that came in by the primary link).
const (
	RulePod     = 512
	RulePrimary = 1024
	RuleOutside = 1025
	RuleUplink  = 1536
)

// Policy rules, marks and tables of pods whose first interface is a VLAN of their own, a branch interface of EC2
// (package plug/routedvlan makes them). This package never changes or removes them.
//
// Packets of a branch of enforcing mode strict, from its pod and from its VLAN, are routed before the kernel's own
// rule for local addresses, which therefore moves behind these rules. A branch of mode standard is routed as other
// pods are, with its VLAN in place of an ENI.
const (
	RuleBranchPast     = 12 // skips those that follow, for packets with another mark
	RuleBranchOut      = 13 // strict: from a pod, to its table, and the reverse path check; two a pod
	RuleBranchIn       = 14 // strict: from a VLAN, to the pod
	RuleBranchSource   = 15 // strict: source validation
	RuleBranchNone     = 16 // strict: all else is prohibited
	RuleLocal          = 20 // in place of the kernel's rule with priority 0, while there is a strict branch
	RuleBranchPod      = 511
	RuleBranchStandard = RuleUplink + 1 // one a pod

	// Values of the MarkUplink bits for packets from a VLAN, for packets from a pod, and the bits that both share.
	BranchIn  = 62
	BranchOut = 63
	BranchAny = BranchIn & BranchOut

	// Tables that hold the routes to pods of branches, by the mode.
	StrictTable   = 19064
	StandardTable = 19065
	// BranchTableBase plus a branch's VLAN is the table for packets from its pod.
	BranchTableBase = 19100

	// BranchNftTable is the name of the nftables table (inet) of branches.
	BranchNftTable = "berth-branches"
	// PortNftTable is the nftables table of ports that are plugged into a switch (package plug/hostlink).
	PortNftTable = "berth-ports"
)

// Bits of the packet mark, moved left by VPC.MarkShift. Only these eight
// bits are ever changed. With no shift they keep clear of kube-proxy (0x4000,
// 0x8000), the portmap plugin (0x2000), Cilium (0xf00 and the upper half),
// Calico (the upper half) and Tailscale (0xff0000).
const (
	// MarkPrimary: the packet leaves by the primary link with one of the node's addresses there, as its connection
	// came in by that link or was translated. Incoming connections have the same bit in the conntrack mark.
	MarkPrimary = 0x80
	// MarkOutside: the packet leaves the VPC and is SNATed to the primary address. On packets to the node itself it
	// means that they come from a pod.
	MarkOutside = 0x40
	// MarkUplink holds the number of the uplink that has the source address. In the conntrack mark it is the number
	// of the uplink by which the first packet came in or left, or notePrimary.
	MarkUplink = 0x3f
	// notePrimary in the conntrack mark, in place of a number, means that the first packet left the VPC by the
	// primary link. No policy rule selects it, so a packet still leaves by main if other software copies the
	// connection's mark to the packet.
	notePrimary = BranchIn - 1

	allMarks = MarkPrimary | MarkOutside | MarkUplink
)

// Link groups (IFLA_GROUP) of pod links: podGroup from creation on, of adopted
// ones once the pod has its gateway, and a number of its own up to reapGroupMax while a batch of links is being removed.
const (
	podGroup     = Protocol << 16
	reapGroupMin = podGroup + 1
	reapGroupMax = podGroup + 0xffff
)
