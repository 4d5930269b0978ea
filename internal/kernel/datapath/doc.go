// Package datapath programs the Linux kernel of one node: pod links, policy
// routing, ENI tables, sysctls and packet filtering (the pod side and the rule
// priorities follow the proposal for the Amazon VPC CNI). It speaks netlink and
// nftables only, runs no program, and knows nothing of Kubernetes or a cloud.
//
// docs/architecture.md, "Data path", lists the rules, chains and routes. A packet is
// routed by rules whose number depends on the number of ENIs and never on the number
// of pods: the marks that they look at are set on packets from pod links only, after
// DNAT, so that a service address is judged by where the packet really goes. An ENI is
// found from the source address by one hash lookup, filled when the ENI is set up, so
// that adding a pod touches routes alone.
//
// # Ownership
//
// What Berth made can be told apart: routes and rules carry Protocol, pod
// links are veths named LinkPrefix + 12 characters in a link group of
// Berth's own, filtering is in the table named NftTable. Nothing else is ever
// changed or removed, except the sysctls that Setup names.
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

// Policy rules, marks and tables of pods whose first interface is a VLAN of their own, a branch
// interface of EC2 (package plug/routedvlan makes them). Nothing here changes or removes them.
//
// A branch of enforcing mode strict is a world of its own on the node: what comes from its pod, and
// from its VLAN, is routed before the kernel's own rule of local addresses, which therefore moves
// behind these rules. One of mode standard is routed as other pods are, and by its VLAN in place of an
// ENI.
const (
	RuleBranchPast     = 12 // past those that follow, with another mark
	RuleBranchOut      = 13 // strict: what came from a pod, to its table, and what is asked back; two a pod
	RuleBranchIn       = 14 // strict: what came by a VLAN, to the pod
	RuleBranchSource   = 15 // strict: whose a source is
	RuleBranchNone     = 16 // strict: nowhere else
	RuleLocal          = 20 // in place of the kernel's rule with priority 0, while there is a strict branch
	RuleBranchPod      = 511
	RuleBranchStandard = RuleUplink + 1 // one a pod

	// Values of the bits MarkUplink: of what came by a VLAN, of what came from a pod, and what they share.
	BranchIn  = 62
	BranchOut = 63
	BranchAny = BranchIn & BranchOut

	// Tables that hold the routes to pods of branches, by the mode.
	StrictTable   = 19064
	StandardTable = 19065
	// BranchTableBase plus a branch's VLAN is the table of what its pod sends.
	BranchTableBase = 19100

	// BranchNftTable is the name of the nftables table (inet) of branches.
	BranchNftTable = "berth-branches"
	// PortNftTable is that of ports that are plugged into a switch (package plug/hostlink).
	PortNftTable = "berth-ports"
)

// Bits of the packet mark, moved left by VPC.MarkShift. Only these eight
// bits are ever changed. With no shift they keep clear of kube-proxy (0x4000,
// 0x8000), the portmap plugin (0x2000), Cilium (0xf00 and the upper half),
// Calico (the upper half) and Tailscale (0xff0000).
const (
	// MarkPrimary means: leaves by the primary link with a source that the node has there, as the connection
	// came in by it or was translated. Of those that came in the same bit is kept in the conntrack mark.
	MarkPrimary = 0x80
	// MarkOutside means: leaves the VPC, is SNATed to the primary address. Of packets to the node
	// itself it means: from a pod.
	MarkOutside = 0x40
	// MarkUplink holds the number of the uplink that has the source. In the conntrack mark it is that of
	// the uplink that the first packet came in or left by, or notePrimary.
	MarkUplink = 0x3f
	// notePrimary is in the conntrack mark, in place of a number: the first packet left the VPC, by the primary link. No
	// policy rule selects it, so a packet to whose mark other software copies that of its connection leaves by main all the same.
	notePrimary = BranchIn - 1

	allMarks = MarkPrimary | MarkOutside | MarkUplink
)

// Link groups (IFLA_GROUP) of pod links: podGroup from creation on, a number
// of its own up to reapGroupMax while a batch of links is being removed.
const (
	podGroup     = Protocol << 16
	reapGroupMin = podGroup + 1
	reapGroupMax = podGroup + 0xffff
)
