package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

func (v *vpc) wanted(pods ...*pod) Desired {
	w := Desired{Config: v.settings(), Supply: UplinkList{v.uplink()}}
	for _, p := range pods { // with the fields that attachment records have
		want := p.want
		want.HostMAC, want.PodMAC, want.MTU = p.links.HostMAC, p.links.PodMAC, p.links.MTU
		w.Pods = append(w.Pods, want)
	}
	return w
}

func TestRepairRestoresRemovedState(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA, podA6), v.pod(podB, podB6)
	a.serveTCP(":80")
	v.router.serveTCP(":80")
	eth0MAC := v.host.link("eth0").Attrs().HardwareAddr
	for _, c := range []struct {
		name, command, says string
	}{
		{"nothing", "true", ""},
		{"rules", "ip rule flush", "IPv4 512 table 19000 rule"},
		{"rules of IPv6", "ip -6 rule flush", "IPv6 512 table 19000 rule"},
		{"pod routes", "ip route flush table 19000", "pod link " + a.want.HostIfName},
		{"pod routes of IPv6", "ip -6 route flush table 19000", "pod link " + b.want.HostIfName},
		{"ENI routes", "ip route flush table 19001", "route 0.0.0.0/0 of table 19001"},
		{"nftables", "nft flush ruleset", "nftables table berth"},
		{"one chain", "nft flush chain inet berth from_pod", "nftables table berth"},
		{"an ENI's chain", "nft flush chain inet berth eni_1", "nftables table berth"},
		{"direct set", "nft flush set inet berth direct4", "nftables table berth"},
		{"ARP table", "nft delete table arp berth", "nftables table arp berth"},
		{"ENI map", "nft flush map inet berth eni_prefix4", "map entries: 1 added and 0 removed"},
		{"ENI notes", "nft flush map inet berth eni_note", "nftables map eni_note"},
		{"ENIs' own addresses", "nft flush map inet berth eni_own4", "map entries: 1 added and 0 removed"},
		{"rule of an ENI's own address", "ip rule del from " + eniAddr, "IPv4 1536 from " + eniAddr},
		{"ENI link", "ip link set eth1 down", "eth1 up"},
		{"ENI address", "ip -4 address flush dev eth1", "address " + eniAddr},
		{"ENI link-local address", "ip -6 address flush dev eth1", "address fe80:"},
		{"pod link down", "ip link set " + b.want.HostIfName + " down", "pod link " + b.want.HostIfName},
		{"MAC address of a pod link", "ip link set " + b.want.HostIfName + " address 02:00:00:00:00:09", "MAC address, neighbour " + podB + ", neighbour " + podB6 + " of pod link " + b.want.HostIfName},
		{"MTU of a pod link", "ip link set " + b.want.HostIfName + " mtu 1400", "MTU of pod link " + b.want.HostIfName},
		{"pod neighbour", "ip neighbour replace " + podB + " dev " + b.want.HostIfName + " lladdr 02:00:00:00:00:09 nud permanent", "neighbour " + podB + " of pod link " + b.want.HostIfName},
		{"pod route replaced", "ip route replace " + podB + " dev eth0 table 19000", "pod link " + b.want.HostIfName},
		{"IPv6 pod route replaced", "ip -6 route replace " + podB6 + " dev eth0 table 19000", "pod link " + b.want.HostIfName},
		{"forwarding", "sysctl -qw net.ipv4.ip_forward=0", "net.ipv4.ip_forward = 1"},
		{"reverse path filter", "sysctl -qw net.ipv4.conf.eth1.rp_filter=1", "net.ipv4.conf.eth1.rp_filter = 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, b := v.as(t), b.as(t)
			v.host.run(c.command)
			if c.name == "rules" { // flush also removes the kernel's own rules
				v.host.run("ip rule add priority 32766 lookup main")
			}
			if c.name == "rules of IPv6" {
				v.host.run("ip -6 rule add priority 32766 lookup main")
			}
			if did := v.repair(v.wanted(a, b)); !strings.Contains(did, c.says) || c.says == "" && did != "" {
				t.Errorf("Repair() = %q, want %q", did, c.says)
			}
			v.whole(v.wanted(a, b))
			v.host.ready("eth0", "eth1")
			v.host.run("ip -6 neighbour flush dev eth1") // cached neighbours would hide a failure
			b.seenAs(podA+":80", podB)
			b.seenAs("["+podA6+"]:80", podB6)
			b.seenAs(peer+":80", podB)
			b.seenAs(internet+":80", nodeAddr)
			b.seenAs("["+peer6+"]:80", podB6)
		})
	}
	if got := v.host.link("eth0").Attrs().HardwareAddr; got.String() != eth0MAC.String() {
		t.Error("Repair() changed the MAC address of the primary link")
	}
}

func TestRepairRestoresDeletedPodLink(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA)
	v.host.must(v.host.nl.LinkDel(rtnl.LinkRef(a.links.HostIndex)))
	if did := v.repair(v.wanted(a)); did != "pod link "+a.want.HostIfName {
		t.Errorf("Repair() = %q, want only the pod link", did)
	}
	v.check(a)
	a.want.Netns = "/run/netns/btdp-none"
	v.host.must(v.host.nl.LinkDel(v.host.link(a.want.HostIfName)))
	if _, err := v.node.Repair(ctx, v.wanted(a)); !errors.Is(err, ErrNoNetns) {
		t.Errorf("Repair() error = %v, want ErrNoNetns", err)
	}
}

// Repair continues if sysctls cannot be set.
func TestRepairContinuesAfterFailedSysctl(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA)
	for _, command := range []string{"ip rule del priority 512", "ip route flush table 19001", "ip neighbour del " + podA + " dev " + a.want.HostIfName} {
		v.host.run(command)
	}
	want := v.wanted(a)
	want.Config.Sysctls = t.TempDir()
	did, err := v.node.Repair(ctx, want)
	if err == nil || !strings.Contains(err.Error(), "net.ipv4.ip_forward = 1") || !strings.Contains(err.Error(), "net.ipv4.conf.eth1.rp_filter = 2") {
		t.Errorf("Repair() error = %v, want the sysctls of the node and of the ENI", err)
	}
	for _, says := range []string{"IPv4 512 table 19000 rule", "route 0.0.0.0/0 of table 19001", "neighbour " + podA} {
		if !strings.Contains(strings.Join(did, "; "), says) {
			t.Errorf("Repair() = %q, want it to contain %q", did, says)
		}
	}
	v.whole(v.wanted(a))
}

func TestRepairAtStartRemovesLeftovers(t *testing.T) {
	v := newVPC(t)
	keep, stray := v.pod(podA), v.pod(podB)
	// A route of a removed attachment, on a desired link.
	v.host.must(v.host.nl.RouteAdd(podRoute(keep.links.HostIndex, netip.MustParseAddr(podC))))

	// A Node does not remove links that it added itself.
	if did := v.repair(v.wanted(keep)); strings.Contains(did, stray.want.HostIfName) {
		t.Errorf("Repair() removed a live pod: %s", did)
	}
	v.host.must(v.host.nl.RouteReplace(podRoute(keep.links.HostIndex, netip.MustParseAddr(podC))))

	v.node = v.host.open() // the daemon restarts
	w := v.wanted(keep)
	w.Supply = nil
	did := v.repair(w)
	for _, part := range []string{"removed link " + stray.want.HostIfName, "removed route " + podC, "removed route " + podB, "removed ENI 1"} {
		if !strings.Contains(did, part) {
			t.Errorf("Repair() at start = %q, want it to contain %q", did, part)
		}
	}
	v.has(1, 1)
	if inv := v.inventory(); len(inv.Uplinks) != 0 {
		t.Errorf("ENIs after Repair() = %+v, want none", inv.Uplinks)
	}
	v.check(keep)
	v.host.serveTCP(":81")
	keep.seenAs(nodeAddr+":81", podA)
}

// The daemon's list of pods may be stale when Repair reads it.
func TestRepairDoesNotRestoreDetachedPod(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA)
	old := v.wanted(a)
	v.detach(a)
	v.repair(old)
	v.has(1, 0)
	v.reap(a)
	v.repair(old)
	v.has(0, 0)
	v.repair(v.wanted())
	if n := len(v.node.podLinks.links); n != 0 {
		t.Errorf("%d detached pods are still tracked although none is desired", n)
	}
	v.add(a)
	v.repair(v.wanted()) // a list from before an ADD
	v.has(1, 1)
}

// Repair does not give a pod that was added again its old addresses from a stale list.
func TestRepairDoesNotRestoreOldAddress(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA)
	old := v.wanted(a)
	v.remove(a)
	a.want.IPv4 = netip.MustParseAddr(podC)
	v.add(a)
	v.whole(old)
	v.has(1, 1)
	v.host.must(v.host.nl.LinkDel(v.host.link(a.want.HostIfName)))
	if did := v.repair(v.wanted(a)); did != "pod link "+a.want.HostIfName {
		t.Errorf("Repair() = %q, want only the pod link", did)
	}
	v.check(a)
}

func TestRepairContinuesAfterError(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA)
	v.host.run("ip route flush table 19000")
	w := v.wanted(a)
	absent := v.uplink()
	absent.ID, absent.Number, absent.MAC = "eni-9", 9, []byte{2, 0, 0, 0, 0, 9}
	w.Supply = append(UplinkList{absent}, w.Supply.(UplinkList)...)
	did, err := v.node.Repair(ctx, w)
	if !errors.Is(err, ErrNoLink) || !strings.Contains(fmt.Sprint(did), a.want.HostIfName) {
		t.Errorf("Repair() = %v, %v, want the pod link and ErrNoLink", did, err)
	}
}

// Pods are added and removed while Repair runs with stale lists: it must neither remove a live pod nor restore a
// removed one.
func TestRepairDuringPodChurn(t *testing.T) {
	v := newVPC(t)
	var mu sync.Mutex
	records := map[string]Pod{} // like the daemon's records: from before the ADD to after the DEL
	record := func(p Pod, keep bool) {
		mu.Lock()
		defer mu.Unlock()
		if keep {
			records[p.HostIfName] = p
		} else {
			delete(records, p.HostIfName)
		}
	}
	var pods []*pod
	addr := netip.MustParseAddr("10.0.64.1")
	for range 8 {
		pods = append(pods, v.sandbox(addr.String()))
		addr = addr.Next()
	}
	var owners sync.WaitGroup
	for _, p := range pods {
		owners.Go(func() {
			for range 15 {
				if err := v.cycle(p, record); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	stop, repairing := make(chan struct{}), sync.WaitGroup{}
	repairing.Go(func() {
		for {
			mu.Lock()
			w := v.wanted()
			w.Pods = slices.Collect(maps.Values(records))
			mu.Unlock()
			if _, err := v.node.Repair(ctx, w); err != nil {
				t.Error(err)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	owners.Wait()
	close(stop)
	repairing.Wait()
	v.repair(v.wanted())
	v.has(0, 0)
}

// cycle adds and removes a pod once.
func (v *vpc) cycle(p *pod, record func(Pod, bool)) error {
	record(p.want, true)
	if _, err := v.node.AddPod(ctx, p.want); err != nil {
		return fmt.Errorf("add: %w", err)
	}
	if err := v.node.CheckPod(ctx, p.want); err != nil {
		return fmt.Errorf("after add: %w", err)
	}
	if err := v.node.DetachPod(ctx, p.want.HostIfName, p.want.Addrs()); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	if err := v.node.ReapLinks(ctx, []string{p.want.HostIfName}); err != nil {
		return fmt.Errorf("reap: %w", err)
	}
	if _, err := v.host.nl.LinkByName(p.want.HostIfName); err == nil {
		return fmt.Errorf("%s exists again after its removal", p.want.HostIfName)
	}
	record(p.want, false)
	return nil
}

// A pod may be added after Repair has listed the links and before it lists the routes.
func TestRepairKeepsRoutesOfPodsAddedMeanwhile(t *testing.T) {
	v := newVPC(t)
	a := v.pod(podA)
	r := &repair{node: v.node, observed: v.inventory()}
	if len(r.observed.Routes) != 1 {
		t.Fatalf("routes = %+v, want one", r.observed.Routes)
	}
	gone := r.observed.Routes[0]
	gone.LinkIndex, gone.Link = 1<<20, ""
	r.observed.Routes[0].Link = ""
	r.observed.Routes = append(r.observed.Routes, gone)
	if did, err := r.removeStrayRoutes(ctx); err != nil || len(did) > 0 {
		t.Errorf("removeStrayRoutes() = %q, %v, want none removed", did, err)
	}
	v.check(a)
}
