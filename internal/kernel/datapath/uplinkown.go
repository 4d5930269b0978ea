package datapath

import "github.com/berthnet/berth/internal/kernel/rtnl"

// A VPC delivers by an ENI what is sent to the ENI's own address, and takes by no other link what has this source. What the
// node itself sends from there looks up the ENI's table by a rule for this source. What gets this source only from the
// kernel's NAT, behind routing, needs the ENI's mark before: answers of pods to which a node port leads, and what others
// masquerade on its way out. So connections are noted: in their mark they have the number of the ENI that the
// first packet came in or left by, or notePrimary. Connections that began without Berth's table, with other mark bits or under a
// release without notes have none.

// own are the addresses of the ENI's link that no pod has and that others may send to.
func (e Uplink) own(u VPC) uplinkEntries {
	m := uplinkEntries{}
	if e.PrimaryIPv4.IsValid() && !e.ownForPods() {
		m[rtnl.HostPrefix(e.PrimaryIPv4)] = e.Number
	}
	if a := e.linkAddress6(); u.ipv6() && a.IsValid() {
		m[rtnl.HostPrefix(a)] = e.Number
	}
	return m
}
