package berthd

import (
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/podegress"
	"github.com/berthnet/berth/internal/node/podevents"
)

// openEgress makes what has pods reach the outside by gateways. Nothing is asked of the kernel
// or the API server yet.
func (n *node) openEgress() (*podegress.Clients, error) {
	var full podegress.Full
	if n.tell != nil {
		full = func(rec attachment.Record, message string) {
			n.tell(podevents.News{Pod: rec.Pod, IfName: rec.Key.IfName, Kind: podevents.GatewayFull, Cause: podevents.ConnectionsFull, Message: message})
		}
	}
	return podegress.New(podegress.Config{
		NodeName: n.cfg.NodeName, Namespace: n.cfg.Namespace, Kubeconfig: n.cfg.Kubeconfig, Kernel: n.deps.Egress(n.cfg.SysctlDir), Ask: n.deps.AskGateway,
		Port: uint16(n.cfg.EgressPort), ClusterNetworks: n.clusterNetworks(), ProbeInterval: n.cfg.EgressProbeInterval, Full: full,
		Clock: n.clock, Logger: n.log, Observer: podegress.NewMetrics(n.metrics.Registry),
	})
}

// setVPC notes the CIDRs of the VPC that the node is in. Packets to these keep their way, too.
func (n *node) setVPC(cidrs []netip.Prefix) {
	n.vpcCIDRs = cidrs
	if n.egress != nil {
		n.egress.SetClusterNetworks(n.clusterNetworks())
	}
}

// clusterNetworks are those whose packets keep their way although an Egress has a default route.
func (n *node) clusterNetworks() []netip.Prefix {
	networks := slices.Clone(n.cfg.EgressClusterNetworks)
	for _, p := range n.vpcCIDRs {
		if !slices.Contains(networks, p) {
			networks = append(networks, p)
		}
	}
	return networks
}
