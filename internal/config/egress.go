package config

import (
	"net/netip"
	"time"
)

// defaultClusterNetworks are those for private use (RFC 1918, RFC 4193), where clusters have
// their pods and nodes.
const defaultClusterNetworks = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7"

// longestProbeInterval is above the time after which Kubernetes itself has noticed.
const longestProbeInterval = 10 * time.Minute

// EgressSettings are those of egress.
type EgressSettings struct {
	Egress                bool
	EgressPort            int // UDP
	EgressClusterNetworks []netip.Prefix
	EgressWait            time.Duration
	EgressGatewayWait     time.Duration
	EgressProbeInterval   time.Duration // 0: gateways are not asked
}

func (c *EgressSettings) rows() []Setting {
	return []Setting{
		{Flag: "egress", Default: "false", bare: true, parse: boolean(&c.Egress),
			Doc: "Have pods reach networks outside by the gateways of Egresses, as their annotation egress.berth.dev/NAMESPACE or the Egresses themselves ask for. Needs the Kubernetes API and a kernel with Foo over UDP."},
		{Flag: "egress-port", Default: "5555", parse: udpPort(&c.EgressPort),
			Doc: "With egress, the UDP port of the tunnels between clients and gateways. The operator's setting of the same name must be the same."},
		{Flag: "egress-cluster-networks", Default: defaultClusterNetworks, parse: cidrs(&c.EgressClusterNetworks),
			Doc: "With egress, networks of the cluster, separated by commas: packets to these go their usual way although an Egress has 0.0.0.0/0 or ::/0 as destination. In a VPC its CIDRs are such networks besides. A narrower destination of an Egress comes first."},
		{Flag: "egress-wait", Default: "45s", parse: duration(&c.EgressWait, 0, 9*time.Minute),
			Doc: "With egress, how long an ADD waits until the operator has said by which Egresses a pod is to reach the outside, of pods that name one or that one may select, before it fails with code 11 (try again later). An ADD that needs an address too waits for the longer of this and warm-wait, for all together."},
		{Flag: "egress-gateway-wait", Default: "2s", parse: duration(&c.EgressGatewayWait, 0, 2*time.Minute),
			Doc: "With egress, how long an ADD waits for the gateways that the pod's connections may take to say that they serve it, so that the first packet of its containers gets through. After that the pod starts all the same. 0: it is not waited for."},
		{Flag: "egress-probe-interval", Default: "1s", parse: duration(&c.EgressProbeInterval, 0, longestProbeInterval),
			Doc: "With egress, how often this node asks each gateway of its pods by TCP whether it answers. New connections avoid one that did not three times in a row while another of its Egress does. 0 turns it off: then a gateway that is gone is avoided once Kubernetes has noticed."},
	}
}

// contradictionsOfEgress is contradictions of these settings.
func (c *Config) contradictionsOfEgress() []error {
	return wrongTogether([]contradiction{
		{c.IPAM == IPAMNone && !c.Egress, "--ipam=none needs --egress: besides that there is nothing to do without addresses"},
		{c.IPAM == IPAMNone && c.VPCPorts, "--vpc-ports needs addresses or ports of this berthd's own, and not --ipam=none: the pods' interfaces are another network's"},
		{c.IPAM == IPAMNone && c.MTU != 0, "--mtu is of no meaning with --ipam=none: the pods' interfaces are another network's"},
		{c.EgressProbeInterval > 0 && c.EgressProbeInterval < 100*time.Millisecond, "--egress-probe-interval is less than 100ms: expected 0 or more than that"},
	})
}
