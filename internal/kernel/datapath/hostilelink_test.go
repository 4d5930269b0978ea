package datapath

import (
	"strings"
	"testing"
)

// Whatever a pod does to its own link, others keep theirs, nobody gets its address,
// and it can be removed.
func TestPodsThatChangeTheirLink(t *testing.T) {
	v := newVPC(t)
	other := v.pod(podA, podA6)
	v.host.serveTCP(":81")
	bystander := newSpace(t, "bystander")
	for name, command := range map[string]string{
		"renames it":           "ip link set eth0 down; ip link set eth0 name lo0; ip link set lo0 up",
		"deletes it":           "ip link del eth0",
		"makes another":        "ip link del eth0; ip link add eth0 type veth peer name bthaaaaaaaaaaaa; ip link set eth0 up",
		"gives it away":        "ip link set eth0 netns " + bystander.name,
		"has another's MAC":    "ip link set eth0 address " + other.links.PodMAC.String(),
		"has the node's MAC":   "ip link set eth0 address " + v.host.link("eth0").Attrs().HardwareAddr.String(),
		"has a small MTU":      "ip link set eth0 mtu 68",
		"has a large MTU":      "ip link set eth0 mtu 65535",
		"flushes addresses":    "ip addr flush dev eth0; ip -6 addr flush dev eth0",
		"has others' address":  "ip addr add " + podA + "/32 dev eth0; ip addr add " + nodeAddr + "/32 dev eth0",
		"answers for everyone": "sysctl -qw net.ipv4.conf.all.proxy_arp=1 net.ipv6.conf.all.forwarding=1 net.ipv4.ip_forward=1",
		"flaps":                strings.Repeat("ip link set eth0 down; ip link set eth0 up; ", 8) + "ip link",
	} {
		t.Run(name, func(t *testing.T) {
			v, other := v.as(t), other.as(t)
			p := v.pod(podB, podB6)
			for one := range strings.SplitSeq(command, "; ") {
				p.run(one)
			}
			if _, err := v.node.Repair(ctx, v.wanted(p, other)); err != nil {
				t.Log("repair:", err) // what a pod keeps from being put back is the pod's loss
			}
			other.seenAs(nodeAddr+":81", podA)
			other.seenAs("["+nodeAddr6+"]:81", podA6)
			for range 2 {
				if err := v.node.DetachPod(ctx, p.want.HostIfName, p.want.Addrs()); err != nil {
					t.Error(err)
				}
				if err := v.node.ReapLinks(ctx, []string{p.want.HostIfName}); err != nil {
					t.Error(err)
				}
			}
			inv := v.inventory()
			if len(inv.Links) != 1 || len(inv.Routes) != 2 {
				t.Errorf("left: links %v, routes %v", inv.Links, inv.Routes)
			}
			if list, err := bystander.nl.LinkList(); err != nil || len(list) != 1 {
				t.Errorf("the bystander has %v, %v", list, err)
			}
		})
	}
}
