package awsvpccni

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/node/adopt"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/foreign"
)

// pod is a pod of the plan with what adopting it takes.
type pod struct {
	migrate.Pod
	adopt adopt.Pod // of Adopt and Adopted
}

// pods decides the fate of each pod: those of the checkpoint, those that Berth created, and those that the checkpoint
// does not list, such as those with branches.
func (s survey) pods() (list []pod) {
	known := map[int]bool{}
	for _, a := range s.checkpoint.Allocations {
		p, at := s.podOf(a)
		known[at.index] = true
		list = append(list, p)
	}
	for _, r := range s.records {
		if slices.ContainsFunc(list, func(p pod) bool { return p.ContainerID == r.Key.ContainerID && p.Interface == r.Key.IfName }) {
			continue
		}
		list = append(list, pod{Pod: migrate.Pod{
			Namespace: r.Pod.Namespace, Name: r.Pod.Name, ContainerID: r.Key.ContainerID, Interface: r.Key.IfName,
			Addresses: r.OwnAddrs(), HostLink: r.HostLink, Uplink: r.Lease.ENI, Fate: migrate.Berth,
		}})
	}
	for _, l := range s.links {
		if known[l.index] || !l.isFormer(s.prefix) {
			continue
		}
		why := "ipamd's checkpoint does not list it"
		if s.isBranch(l) {
			why = "it has a branch interface (SecurityGroupPolicy)"
		}
		list = append(list, pod{Pod: migrate.Pod{Interface: l.peer, Addresses: l.addresses, HostLink: l.name, Fate: migrate.Replace, Why: why}})
	}
	slices.SortFunc(list, func(x, y pod) int {
		return strings.Compare(x.Namespace+"/"+x.Name+x.ContainerID+x.HostLink, y.Namespace+"/"+y.Name+y.ContainerID+y.HostLink)
	})
	return list
}

// isFormer reports whether the link has a name that the Amazon VPC CNI gives, with its prefix for pods without branches.
func (l link) isFormer(prefix string) bool {
	return slices.ContainsFunc([]string{branchPrefix, prefix}, func(prefix string) bool {
		hash, ok := strings.CutPrefix(l.name, prefix)
		return ok && len(hash) == linkHashLen && strings.Trim(hash, "0123456789abcdef") == ""
	})
}

// isBranch reports whether a link of the Amazon VPC CNI is that of a pod with a branch interface: it has the prefix of
// enforcing mode strict, or its packets use the table of a VLAN.
func (s survey) isBranch(l link) bool {
	return strings.HasPrefix(l.name, branchPrefix) ||
		slices.ContainsFunc(l.addresses, func(a netip.Addr) bool { t := s.tableFrom(a); return t > branchTables && t != mainTable })
}

// podOf decides about a pod of the checkpoint.
func (s survey) podOf(a foreign.Allocation) (pod, link) {
	p := pod{Pod: migrate.Pod{
		Namespace: a.Metadata.Namespace, Name: a.Metadata.Pod, ContainerID: a.ContainerID, Interface: a.IfName, Addresses: a.Addrs(),
	}}
	if r, ok := s.recordOf(a); ok && r.Adopted != nil && slices.Equal(r.OwnAddrs(), a.Addrs()) {
		p.HostLink, p.Uplink, p.Fate = r.HostLink, r.Lease.ENI, migrate.Adopted
		p.adopt = adopt.Pod{Key: r.Key, Pod: r.Pod, Lease: r.Lease, Netns: r.Netns, Former: *r.Adopted}
		return p, link{}
	}
	l, found := s.linkOf(a.Metadata.Namespace, a.Metadata.Pod)
	if !found {
		l, found = s.byAddress(a.Addrs()[0])
	}
	if !found {
		p.Fate = migrate.Gone
		return p, link{}
	}
	p.HostLink = l.name
	if why := s.obstacleOf(a, l); why != "" {
		p.Fate, p.Why = migrate.Replace, why
		return p, l
	}
	e, _ := s.eniAt(s.tableFrom(a.Addrs()[0]))
	p.Uplink, p.Fate = e.ID, migrate.Adopt
	lease := attachment.Lease{IPv4: a.IPv4, IPv6: a.IPv6, Uplink: e.DeviceIndex}
	lease.ENI = e.ID
	former := attachment.Adopted{From: migrate.AmazonVPCCNI, HostLink: l.name}
	if a.NetworkName != s.network {
		former.Network = a.NetworkName
	}
	if a.Timestamp > 0 {
		former.Created = a.At().UTC()
	}
	p.adopt = adopt.Pod{
		Key:   attachment.Key{Network: s.network, ContainerID: a.ContainerID, IfName: a.IfName},
		Pod:   attachment.Pod{Namespace: a.Metadata.Namespace, Name: a.Metadata.Pod, UID: s.uids[a.ContainerID]},
		Lease: lease, Netns: l.netns, Former: former,
	}
	return p, l
}

// obstacleOf returns why a pod must be replaced, or "".
func (s survey) obstacleOf(a foreign.Allocation, l link) string {
	addr := a.Addrs()[0]
	at, byTable := s.eniAt(s.tableFrom(addr))
	of, held := s.eniOf(addr)
	switch {
	case a.Metadata.Interfaces > 1:
		return "it has interfaces on several network cards, which Berth does not support"
	case a.IPv4.IsValid() && a.IPv6.IsValid():
		return "its entry in the checkpoint has two addresses, which the Amazon VPC CNI never assigns"
	case l.netns.Path == "":
		return fmt.Sprintf("no path leads to the network namespace of %s", l.name)
	case l.peer != a.IfName:
		return fmt.Sprintf("its interface is %s, and the checkpoint says %s", l.peer, a.IfName)
	case !slices.Contains(l.addresses, addr):
		return fmt.Sprintf("its interface %s does not have %s", l.peer, addr)
	case !byTable:
		return fmt.Sprintf("its packets use routing table %d, which belongs to no ENI of the first network card", s.tableFrom(addr))
	case slices.Contains(s.trunks, at.MAC.String()):
		return fmt.Sprintf("its address belongs to the trunk ENI %s, which stays the Amazon VPC CNI's", at.ID)
	case held && of.ID != at.ID:
		return fmt.Sprintf("%s is an address of %s, and its packets leave by %s", addr, of.ID, at.ID)
	}
	return ""
}

// plan returns what the migration would do.
func (s survey) plan() migrate.Plan {
	p := migrate.Plan{From: migrate.AmazonVPCCNI, Obstacles: s.obstacles()}
	for _, one := range s.pods() {
		p.Pods = append(p.Pods, one.Pod)
	}
	p.Found = append(p.Found, fmt.Sprintf("instance %s (%s) with %d ENIs", s.instance.InstanceID, s.instance.InstanceType, len(s.enis)))
	if s.aside {
		p.Found = append(p.Found, "ipamd's checkpoint is set aside: ipamd refuses to start")
	}
	left := migrate.Count(p.Pods, migrate.Adopt)
	p.Steps = []migrate.Step{
		{Name: "interlock", What: "set ipamd's checkpoint and CNI configuration aside, so that it neither starts nor gets pods", Done: s.aside},
		{Name: "data path", What: "set up Berth's rules, tables and nftables, beside those of the Amazon VPC CNI", Done: s.aside && left == 0},
		{Name: "adopt", What: fmt.Sprintf("adopt %d pods: record, rename the link, set Berth's routes, remove the former ones", left), Done: s.aside && left == 0},
		{Name: "finish", What: "remove what the Amazon VPC CNI left on the node (apply --finish)", Final: true},
	}
	return p
}

// obstacles lists what is in the way.
func (s survey) obstacles() (list []migrate.Obstacle) {
	add := func(blocks bool, what, remedy string) {
		list = append(list, migrate.Obstacle{What: what, Remedy: remedy, Blocks: blocks})
	}
	if s.unreadable != nil {
		add(true, s.unreadable.Error(), "Restart the aws-node pod of the node: ipamd writes its checkpoint again. Then stop it and repeat the plan.")
	}
	if s.quarantine > 0 {
		add(true, fmt.Sprintf("%d records of attachments are damaged", s.quarantine), "Look at the files that end in .bad in the state directory.")
	}
	if s.hostPorts && s.network != s.formerName {
		add(false, fmt.Sprintf("the CNI configuration of the Amazon VPC CNI has the portmap plugin in network %q, and Berth's network is %q: rules of host ports stay after their pods", s.formerName, s.network),
			fmt.Sprintf("Set cni-network to %s in Berth's settings.", s.formerName))
	}
	if !s.kernel.renamesLinksThatAreUp() {
		add(false, fmt.Sprintf("Linux %d.%d cannot rename links that are up", s.kernel.major, s.kernel.minor), "Each pod is without its network for about a millisecond.")
	}
	if s.cards {
		add(false, "ipamd has checkpoints of further network cards", "Pods with interfaces on several network cards are replaced.")
	}
	if n := s.withoutUID(); s.policies && n > 0 {
		add(false, fmt.Sprintf("the UIDs of %d pods are unknown, as the container runtime's cache (--cni-cache-dir) has no entry for them", n), "Network policies do not apply to these pods until they are replaced.")
	}
	for i, x := range s.links {
		for _, y := range s.links[:i] {
			for _, a := range x.addresses {
				if slices.Contains(y.addresses, a) {
					add(true, fmt.Sprintf("%s and %s both lead to a pod with %s", y.name, x.name, a), "Delete one of the pods.")
				}
			}
		}
	}
	return list
}

// withoutUID counts the pods to adopt whose UID is unknown.
func (s survey) withoutUID() (n int) {
	for _, p := range s.pods() {
		if p.Fate == migrate.Adopt && p.adopt.Pod.UID == "" {
			n++
		}
	}
	return n
}
