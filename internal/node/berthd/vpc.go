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

// metadataTimeout is short because calls are retried.
const metadataTimeout = 5 * time.Second

// vpc is shared by both modes with ENIs: the node is an instance of the cloud.
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
			m.log.Info("the node's subnet is IPv6-only: pods have IPv6 addresses and cannot reach IPv4 networks through this node", "subnet", m.id.SubnetID)
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
	cidrs := m.networks.start(m.id.VPCCIDRs, own || m.noIPv4() || m.cfg.IPFamilies.Has(ipfamily.IPv6))
	return data, data.Setup(ctx, m.datapathConfig(), uplinks.VPCSettings(m.cfg, m.id, cidrs, nodeLocal(!m.noIPv4(), local || m.cfg.IPv6Egress)))
}

// ipv6OfPods reports whether running pods have IPv6 addresses, of their own or node-local ones. A
// restart must not cut them off, regardless of what new pods get.
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

// noIPv4 reports whether the node's subnet is IPv6-only.
func (m *vpc) noIPv4() bool { return !m.id.PrimaryIPv4.IsValid() }

// nodeLocal returns the networks of node-local addresses. The IPv4 network exists whenever the node has
// IPv4; the IPv6 network turns IPv6 on, which a node may lack.
func nodeLocal(ipv4, ipv6 bool) (list []netip.Prefix) {
	if ipv4 {
		list = append(list, nodelocal.Network4)
	}
	if ipv6 {
		list = append(list, nodelocal.Network6)
	}
	return list
}

// withNodeLocal adds a node-local address of the missing family to single-family leases, if configured.
// A node without IPv4 cannot offer IPv4.
func (m *vpc) withNodeLocal(src source.Source, err error) (source.Source, error) {
	if err != nil {
		return nil, err
	}
	return nodelocal.New(src, m.cfg.IPv4Egress && !m.noIPv4(), m.cfg.IPv6Egress, m.clock), nil
}

// follow keeps the data path in sync with the VPC's CIDRs, which may change at any time.
func (m *vpc) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.clock.After(m.cfg.ListingInterval):
		}
		all, ok := m.askVPCCIDRs(ctx)
		if !ok {
			continue
		}
		m.setVPC(all)
		switch cidrs, changed, err := m.networks.set(ctx, all); {
		case err != nil:
			m.log.Warn("applying the VPC's CIDRs failed, will try again", "cidrs", cidrs, "err", err)
		case changed:
			m.log.Info("the VPC's CIDRs changed", "cidrs", cidrs)
		}
	}
}

// askVPCCIDRs reads the VPC's CIDRs from the metadata service. It returns false if they are unknown, because
// the service does not respond or names another instance.
func (m *vpc) askVPCCIDRs(ctx context.Context) (_ []netip.Prefix, ok bool) {
	id, err := m.meta.Identity(ctx)
	if err != nil {
		return nil, false
	}
	if id.InstanceID != m.id.InstanceID {
		m.log.Error("the metadata service names another instance; ignoring its VPC", "instance", m.id.InstanceID, "other", id.InstanceID)
		return nil, false
	}
	return id.VPCCIDRs, true
}
