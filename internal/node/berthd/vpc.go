package berthd

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/uplinks"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/nodelocal"
)

// metadataTimeout is short because asking is repeated.
const metadataTimeout = 5 * time.Second

// vpc is what both modes of ENIs have: the node is an instance of the cloud.
type vpc struct {
	*node
	aws      aws.Options
	meta     cloud.Metadata
	id       cloud.Identity
	networks *vpcNetworks // the data path of ENIs
	onDemand bool         // see vpcNetworks
}

func (m *vpc) identify(ctx context.Context) (string, error) {
	m.aws = aws.Options{
		Region: m.cfg.Region, EC2Endpoint: m.cfg.EC2Endpoint, IMDSEndpoint: m.cfg.IMDSEndpoint,
		Logger: m.log, UserAgent: "berthd", MetadataTimeout: metadataTimeout,
	}
	m.meta = m.deps.Metadata(m.aws)
	err := m.until(ctx, "the instance metadata service", func() (err error) {
		m.id, err = identify(ctx, m.meta, m.cfg.StateDir, m.bootID, m.log)
		return err
	})
	if err == nil {
		m.setVPC(m.id.VPCCIDRs)
		m.log.Info("identified", "instance", m.id.InstanceID, "type", m.id.InstanceType, "zone", m.id.Zone, "vpc", m.id.VPCID)
		if m.noIPv4() {
			m.log.Info("the node's subnet is of IPv6 alone: pods have IPv6 addresses, and no way to the IPv4 world by this node", "subnet", m.id.SubnetID)
		}
	}
	return m.id.InstanceID, err
}

func (m *vpc) setUp(ctx context.Context, kernel uplinks.Node) (daemon.Kernel, error) {
	data := uplinks.NewVPC(kernel)
	m.networks = &vpcNetworks{vpcDatapath: data, ask: m.askVPCCIDRs, onDemand: m.onDemand, noIPv4: m.noIPv4()}
	inv, err := kernel.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	own, local := ipv6OfPods(inv)
	return data, data.Setup(ctx, m.datapathConfig(), datapath.VPC{
		PrimaryMAC: m.id.PrimaryMAC, PrimaryIPv4: m.id.PrimaryIPv4,
		LocalCIDRs: m.networks.start(m.id.VPCCIDRs, own || m.noIPv4() || m.cfg.IPFamilies.Has(ipfamily.IPv6)),
		NodeLocal:  nodeLocal(!m.noIPv4(), local || m.cfg.IPv6Egress), ExcludeCIDRs: m.cfg.ExcludeSNATCIDRs, ExternalSNAT: m.cfg.ExternalSNAT,
		MarkShift: uint(m.cfg.MarkShift),
	})
}

// ipv6OfPods tells whether pods that run have IPv6 addresses, of their own or
// node-local ones. A restart must not cut them off, whatever new pods get.
func ipv6OfPods(inv datapath.Inventory) (own, local bool) {
	addrs := slices.Clone(inv.Branches)
	for _, r := range inv.Routes {
		addrs = append(addrs, r.Addr)
	}
	for _, a := range addrs {
		switch {
		case nodelocal.Network6.Contains(a):
			local = true
		case ipfamily.Of(a) == ipfamily.IPv6:
			own = true
		}
	}
	return own, local
}

// needIPv6 implements mode.
func (m *vpc) needIPv6(ctx context.Context) error { return m.networks.needIPv6(ctx) }

// noIPv4 tells that the node has no IPv4 address: its subnet is of IPv6 alone.
func (m *vpc) noIPv4() bool { return !m.id.PrimaryIPv4.IsValid() }

// nodeLocal are the networks of node-local addresses, that of IPv4 whatever pods have and
// settings say, if the node has IPv4. That of IPv6 turns IPv6 on, which a node may lack.
func nodeLocal(ipv4, ipv6 bool) (list []netip.Prefix) {
	if ipv4 {
		list = append(list, nodelocal.Network4)
	}
	if ipv6 {
		list = append(list, nodelocal.Network6)
	}
	return list
}

// withNodeLocal has a source's leases of one family come with a node-local address of
// the other, as the settings say. Nobody reaches the IPv4 world by a node that has no IPv4.
func (m *vpc) withNodeLocal(src source.Source, err error) (source.Source, error) {
	if err != nil {
		return nil, err
	}
	return nodelocal.New(src, m.cfg.IPv4Egress && !m.noIPv4(), m.cfg.IPv6Egress, m.clock), nil
}

// follow keeps the data path to the VPC's CIDRs, of which one may be associated at
// any time.
func (m *vpc) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.clock.After(m.cfg.ListingInterval):
		}
		all, ok := m.askVPCCIDRs(ctx)
		if !ok {
			continue // they stay as they are
		}
		m.setVPC(all)
		switch cidrs, changed, err := m.networks.set(ctx, all); {
		case err != nil:
			m.log.Warn("taking over the VPC's CIDRs, will try again", "cidrs", cidrs, "err", err)
		case changed:
			m.log.Info("the VPC's CIDRs changed", "cidrs", cidrs)
		}
	}
}

// askVPCCIDRs asks for the VPC's CIDRs again. What is said of another instance says nothing of
// this one; a metadata service that does not answer was told of at the start.
func (m *vpc) askVPCCIDRs(ctx context.Context) (_ []netip.Prefix, ok bool) {
	id, err := m.meta.Identity(ctx)
	if err != nil {
		return nil, false
	}
	if id.InstanceID != m.id.InstanceID {
		m.log.Error("the metadata service names another instance, whose VPC is not looked at", "instance", m.id.InstanceID, "other", id.InstanceID)
		return nil, false
	}
	return id.VPCCIDRs, true
}
