// Package awsvpccni migrates one node from the Amazon VPC CNI, and back.
//
//	survey.go      what is on the node, as values
//	plan.go        each pod's fate and the obstacles: a function of the survey
//	system.go      migrate.System: the steps, in an order that a kill cannot break
//	verify.go      migrate.System.Verify: what is wrong with the node
//	checkpoint.go  ipamd's checkpoint, aside while pods are Berth's
//	links.go       links, rules and routes of the node
//	leftovers.go   what the Amazon VPC CNI leaves on a node
//	chartvalues    settings of the aws-node DaemonSet as values of the chart
package awsvpccni

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/migrate/awsvpccni/chartvalues"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/foreign"
)

// Priorities of the Amazon VPC CNI's policy rules (aws/amazon-vpc-cni-k8s v1.23, pkg/networkutils).
const (
	ruleBranch    = 10 // of enforcing mode strict
	ruleToPod     = 512
	ruleMark      = 1024
	ruleExternal  = 1535
	ruleFromPod   = 1536
	ruleFromENI   = 32765
	connmark      = 0x80
	mainTable     = 254
	branchTables  = 100 // plus the VLAN: table of a branch
	lastVLAN      = 4094
	conflist      = "10-aws.conflist"
	branchPrefix  = "vlan" // of links of pods with a branch, enforcing mode strict
	linkHashLen   = 11
	defaultPrefix = "eni"
)

// tableOf is the routing table of an ENI on the first network card. The primary ENI uses the main table.
func tableOf(deviceIndex int) int {
	if deviceIndex == 0 {
		return mainTable
	}
	return deviceIndex + 1
}

// vlanLink names the link of a branch on the node.
func vlanLink(vlan int) string { return fmt.Sprintf("vlan.eth.%d", vlan) }

// linkSuffix ends the name of a pod's link on the node, after the prefix.
func linkSuffix(namespace, pod string) string {
	a := foreign.Allocation{Metadata: foreign.Metadata{Namespace: namespace, Pod: pod}}
	return strings.TrimPrefix(a.HostLink(), defaultPrefix)
}

// link is the end on the node of a veth whose other end is in another network namespace.
type link struct {
	name      string
	index     int
	netns     attachment.Netns // of the other end; empty: none has a path
	peer      string           // the other end's name, and its global addresses
	addresses []netip.Addr
}

// isBerths reports whether Berth gave the link its name.
func (l link) isBerths() bool { return datapath.IsHostLinkName(l.name) }

// survey is the state of the node.
type survey struct {
	saved
	configured
	instance   cloud.Identity
	enis       []cloud.AttachedENI
	links      []link
	trunks     []string // MAC addresses of trunk ENIs
	rules      []attachment.AdoptedRule
	records    []attachment.Record
	quarantine int               // damaged records
	uids       map[string]string // of pods, by container
	kernel     version
}

// saved is what ipamd has stored.
type saved struct {
	checkpoint foreign.Checkpoint
	aside      bool  // the checkpoint is set aside: an apply has begun
	hidden     bool  // the CNI configuration is set aside
	unreadable error // invalid entries of the checkpoint
	cards      bool  // there are checkpoints of other network cards
}

// configured is how both systems are configured.
type configured struct {
	prefix     string // of links
	formerName string // of the network, in the CNI configuration of the Amazon VPC CNI
	hostPorts  bool   // it has the portmap plugin
	network    string // name of Berth's network
	policies   bool   // Berth enforces network policies
}

// version is that of the kernel.
type version struct{ major, minor int }

// renamesLinksThatAreUp reports whether the kernel renames a link without setting it down (Linux 6.2).
func (v version) renamesLinksThatAreUp() bool { return v.major > 6 || v.major == 6 && v.minor >= 2 }

// linkOf finds the link of a pod by its name, whatever the prefix is.
func (s survey) linkOf(namespace, pod string) (link, bool) {
	suffix := linkSuffix(namespace, pod)
	i := slices.IndexFunc(s.links, func(l link) bool { return strings.HasSuffix(l.name, suffix) && len(l.name) <= len(suffix)+4 })
	if i < 0 || pod == "" {
		return link{}, false
	}
	return s.links[i], true
}

// byAddress finds the link whose other end has an address.
func (s survey) byAddress(a netip.Addr) (link, bool) {
	i := slices.IndexFunc(s.links, func(l link) bool { return !l.isBerths() && slices.Contains(l.addresses, a) })
	if i < 0 {
		return link{}, false
	}
	return s.links[i], true
}

// tableFrom returns the table of packets from an address; the main one without a rule.
func (s survey) tableFrom(a netip.Addr) int {
	for _, r := range s.rules {
		if r.Priority == ruleFromPod && r.From == netip.PrefixFrom(a, a.BitLen()) {
			return r.Table
		}
	}
	return mainTable
}

// eniAt finds the ENI with a routing table.
func (s survey) eniAt(table int) (cloud.AttachedENI, bool) {
	i := slices.IndexFunc(s.enis, func(e cloud.AttachedENI) bool { return e.NetworkCard == 0 && tableOf(e.DeviceIndex) == table })
	if i < 0 {
		return cloud.AttachedENI{}, false
	}
	return s.enis[i], true
}

// eniOf finds the ENI that holds an address.
func (s survey) eniOf(a netip.Addr) (cloud.AttachedENI, bool) {
	i := slices.IndexFunc(s.enis, func(e cloud.AttachedENI) bool {
		return slices.ContainsFunc(e.Held, func(p netip.Prefix) bool { return p.Contains(a) })
	})
	if i < 0 {
		return cloud.AttachedENI{}, false
	}
	return s.enis[i], true
}

// recordOf finds the record of an allocation.
func (s survey) recordOf(a foreign.Allocation) (attachment.Record, bool) {
	i := slices.IndexFunc(s.records, func(r attachment.Record) bool {
		return r.Key.ContainerID == a.ContainerID && r.Key.IfName == a.IfName
	})
	if i < 0 {
		return attachment.Record{}, false
	}
	return s.records[i], true
}

// survey reads the state of the node, and changes nothing.
func (n *Node) survey(ctx context.Context) (s survey, err error) {
	if s.instance, err = n.o.Metadata.Identity(ctx); err != nil {
		return s, err
	}
	if s.enis, err = n.o.Metadata.AttachedENIs(ctx); err != nil {
		return s, err
	}
	if s.checkpoint, s.aside, s.unreadable, err = n.files.read(); err != nil {
		return s, err
	}
	s.cards, s.policies, s.uids = n.files.otherCards(), n.o.Config.NetworkPolicies, map[string]string{}
	for _, a := range s.checkpoint.Allocations {
		s.uids[a.ContainerID] = n.files.uid(a)
	}
	former, err := n.files.conflist()
	if err != nil {
		return s, err
	}
	s.network, s.formerName, s.hostPorts = n.o.Config.CNINetwork, cmp.Or(former.Name, chartvalues.NetworkName), former.has("portmap")
	s.prefix, s.hidden = former.prefix(), n.files.hidden()
	if s.links, s.trunks, err = n.links(); err != nil {
		return s, err
	}
	if s.rules, err = n.rules(); err != nil {
		return s, err
	}
	if s.kernel, err = kernelVersion(); err != nil {
		return s, err
	}
	s.records, s.quarantine, err = attachment.Peek(n.records(), s.instance.InstanceID)
	return s, err
}
