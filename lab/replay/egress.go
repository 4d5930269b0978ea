package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/egressclient"
	"github.com/berthnet/berth/internal/kernel/ns"
)

// UsesEgress reports whether a pod has tunnels to gateways of Coil's Egresses.
func (p Pod) UsesEgress() bool { return p.hasLink(egressclient.FormerMark) && !p.IsGateway() }

// IsGateway reports whether a pod is a gateway of an Egress of Coil.
func (p Pod) IsGateway() bool { return p.hasLink(egressclient.FormerGatewayMark) }

func (p Pod) hasLink(name string) bool {
	return slices.ContainsFunc(p.Links, func(l Link) bool { return l.Name == name })
}

// Remote is the remote end of a tunnel: for clients of Egresses, the address of a Service. Links without one have none.
func (l Link) Remote() netip.Addr {
	var d tunnelData
	_ = json.Unmarshal(l.Data, &d)
	a, _ := netip.ParseAddr(d.Remote) // "any" has none
	return a
}

// gatewayScript is what the recording lacks of a gateway.
const gatewayScript = `sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
for f in ip ip6; do nft add table $f nat; nft add chain $f nat POSTROUTING '{ type nat hook postrouting priority 100; }'; nft add rule $f nat POSTROUTING oifname eth0 masquerade; done`

// mangleScript makes the tables of clients with --enable-originating-only.
const mangleScript = `for f in ip ip6; do nft -f - <<N
table $f mangle {
 set eth0 { type ifname; elements = { eth0 }; }
 chain input { type filter hook input priority mangle; iifname @eth0 ct state { new, established, related } counter ct mark set 4; }
 chain output { type route hook output priority mangle; ct mark 4 counter meta mark set ct mark; }
}
N
done`

// checksumScript makes the rule of clients before version 2.5.
const checksumScript = `for i in iptables-nft ip6tables-nft; do $i -t mangle -A POSTROUTING -p udp --dport 5555 -j CHECKSUM --checksum-fill; done`

// CompleteEgress makes what the recordings lack of clients and gateways: rules of nftables, and forwarding.
func (r *Raised) CompleteEgress() error {
	for _, p := range r.Pods {
		script := ""
		switch {
		case p.IsGateway():
			script = gatewayScript
		case !p.UsesEgress():
			continue
		case slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.Mark != "" }):
			script = mangleScript
		case p.hasLink("tunl0"):
			script = checksumScript
		}
		if err := Script(r.PodNetns(p), script); err != nil {
			return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return nil
}

// Proxy leads the Services of Egresses to gateways on a node, as kube-proxy does, in place of an earlier call. Flows of clients
// that keep their tunnels follow.
func (r *Raised) Proxy(node string, gateways map[netip.Addr]netip.Addr) error {
	var script strings.Builder
	script.WriteString("nft -f - <<N\ntable inet proxy\ndelete table inet proxy\ntable inet proxy {\n chain pre {\n type nat hook prerouting priority -100;\n")
	for service, to := range gateways {
		family := map[bool]string{true: "ip", false: "ip6"}[service.Is4()]
		fmt.Fprintf(&script, "%s daddr %s udp dport 5555 dnat %s to %s\n", family, service, family, to)
	}
	if err := Script(r.Netns(node), script.String()+"}\n}\nN\n"); err != nil {
		return err
	}
	return ns.Do(r.Netns(node), func() error {
		for service := range gateways {
			stale := &netlink.ConntrackFilter{}
			family := netlink.InetFamily(unix.AF_INET)
			if service.Is6() {
				family = unix.AF_INET6
			}
			if err := errors.Join(stale.AddProtocol(unix.IPPROTO_UDP), stale.AddIP(netlink.ConntrackOrigDstIP, service.AsSlice())); err != nil {
				return err
			}
			if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, stale); err != nil {
				return err
			}
		}
		return nil
	})
}

// Script runs a shell script in a network namespace.
func Script(netns, script string) error {
	if out, err := exec.Command("nsenter", "--net="+netns, "bash", "-ec", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}
