package berthd

import (
	"context"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/carrier"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/aws"
	"github.com/berthnet/berth/internal/daemon"
	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/ipfamily"
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
	// ipv6 tells, before the data path is set up, whether it is to have IPv6 whatever
	// the setting is; nil: it is not.
	ipv6 func() bool
}

func (m *vpc) identify(ctx context.Context) (string, error) {
	m.aws = aws.Options{
		Region: m.cfg.Region, EC2Endpoint: m.cfg.EC2Endpoint, IMDSEndpoint: m.cfg.IMDSEndpoint,
		Logger: m.log, UserAgent: "berthd", MetadataTimeout: metadataTimeout,
	}
	m.meta = aws.NewMetadata(m.aws)
	err := m.until(ctx, "the instance metadata service", func() (err error) {
		m.id, err = identify(ctx, m.meta, m.cfg.StateDir, m.bootID, m.log)
		return err
	})
	if err == nil {
		m.setVPC(m.id.VPCCIDRs)
		m.log.Info("identified", "instance", m.id.InstanceID, "type", m.id.InstanceType, "zone", m.id.Zone, "vpc", m.id.VPCID)
	}
	return m.id.InstanceID, err
}

func (m *vpc) setUp(ctx context.Context, kernel *datapath.Node) (daemon.Kernel, error) {
	data := carrier.NewVPC(kernel)
	m.networks = &vpcNetworks{vpcDatapath: data, ask: m.askVPCCIDRs, onDemand: m.ipv6 != nil}
	ipv6 := m.cfg.IPFamilies.Has(ipfamily.IPv6) || m.ipv6 != nil && m.ipv6()
	return data, data.Setup(ctx, m.datapathConfig(), datapath.VPC{
		PrimaryMAC: m.id.PrimaryMAC, PrimaryIPv4: m.id.PrimaryIPv4,
		LocalCIDRs: m.networks.start(m.id.VPCCIDRs, ipv6), ExcludeCIDRs: m.cfg.ExcludeSNATCIDRs, ExternalSNAT: m.cfg.ExternalSNAT,
		MarkShift: uint(m.cfg.MarkShift),
	})
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
