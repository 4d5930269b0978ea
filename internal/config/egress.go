package config

import (
	"net/netip"
	"time"
)

// defaultClusterNetworks are the private networks (RFC 1918, RFC 4193) that clusters usually use for pods and nodes.
const defaultClusterNetworks = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7"

// longestProbeInterval is longer than Kubernetes itself takes to notice a failure.
const longestProbeInterval = 10 * time.Minute

// EgressSettings are the settings of egress.
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
			Doc: "Let pods reach external networks through the gateways of Egresses, which pods select by the annotation egress.berth.dev/NAMESPACE or which select pods. Needs the Kubernetes API and a kernel with Foo over UDP."},
		{Flag: "egress-port", Default: "5555", parse: udpPort(&c.EgressPort),
			Doc: "With egress, the UDP port of the tunnels between clients and gateways. It must equal the operator's setting of this name."},
		{Flag: "egress-cluster-networks", Default: defaultClusterNetworks, parse: cidrs(&c.EgressClusterNetworks),
			Doc: "With egress, networks of the cluster, separated by commas. Packets to these keep their usual route although an Egress has the destination 0.0.0.0/0 or ::/0. In a VPC, its CIDRs are added. A narrower destination of an Egress takes precedence."},
		{Flag: "egress-wait", Default: "45s", parse: duration(&c.EgressWait, 0, 9*time.Minute),
			Doc: "With egress, how long the ADD of a pod that names an Egress, or that one may select, waits for the operator to assign Egresses before it fails with code 11 (try again later). An ADD that also needs an address waits for both together, for the longer of this and warm-wait."},
		{Flag: "egress-gateway-wait", Default: "2s", parse: duration(&c.EgressGatewayWait, 0, 2*time.Minute),
			Doc: "With egress, how long an ADD waits for the pod's gateways to confirm that they serve it, so that the first packet of its containers gets through. After that the pod starts anyway. 0: do not wait."},
		{Flag: "egress-probe-interval", Default: "1s", parse: duration(&c.EgressProbeInterval, 0, longestProbeInterval),
			Doc: "With egress, how often this node probes each gateway of its pods by TCP. New connections avoid a gateway that failed three times in a row while another gateway of its Egress answers. 0 disables probes: a gateway that is gone is avoided once Kubernetes has noticed."},
	}
}

// contradictionsOfEgress returns the contradictions of these settings.
func (c *Config) contradictionsOfEgress() []error {
	return wrongTogether([]contradiction{
		{c.IPAM == IPAMNone && !c.Egress, "--ipam=none needs --egress: without addresses there is nothing else to do"},
		{c.IPAM == IPAMNone && c.VPCPorts, "--vpc-ports cannot be used with --ipam=none: another network creates the pods' interfaces"},
		{c.IPAM == IPAMNone && c.MTU != 0, "--mtu has no effect with --ipam=none: another network creates the pods' interfaces"},
		{c.EgressProbeInterval > 0 && c.EgressProbeInterval < 100*time.Millisecond, "--egress-probe-interval is less than 100ms: expected 0 or more than that"},
	})
}
