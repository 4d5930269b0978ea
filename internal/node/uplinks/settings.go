package uplinks

import (
	"log/slog"
	"net/netip"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/kernel/datapath"
)

// Settings returns the configuration of the data path that the settings of all modes result in.
func Settings(c config.Config, log *slog.Logger) datapath.Config {
	return datapath.Config{BlockMetadata: c.BlocksMetadata(), MaxConnections: c.MaxConnections, MTU: c.MTU, Sysctls: c.SysctlDir, Log: log}
}

// VPCSettings returns the data path of an instance. cidrs are those of the VPC whose families pods have; nodeLocal are
// the networks of node-local addresses.
func VPCSettings(c config.Config, id cloud.Identity, cidrs, nodeLocal []netip.Prefix) datapath.VPC {
	return datapath.VPC{
		PrimaryMAC: id.PrimaryMAC, PrimaryIPv4: id.PrimaryIPv4, LocalCIDRs: cidrs, NodeLocal: nodeLocal,
		ExcludeCIDRs: c.ExcludeSNATCIDRs, ExternalSNAT: c.ExternalSNAT, MarkShift: uint(c.MarkShift),
	}
}
