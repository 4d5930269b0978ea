// Package config is berthd's settings: one table that flags, environment
// variables, their checks and the reference page are all made from.
package config

import (
	"net/netip"
	"time"
)

// Config is every setting of berthd, parsed and checked.
type Config struct {
	// Node
	NodeName    string
	ClusterName string
	StateDir    string
	Socket      string

	// Addresses, the AWS dialect. Negative means not set.
	WarmENITarget    int
	WarmIPTarget     int
	MinimumIPTarget  int
	WarmPrefixTarget int
	MaxENI           int
	PrefixDelegation bool

	// Addresses, the Cilium dialect. Negative means not set.
	MinAllocate         int
	PreAllocate         int
	MaxAboveWatermark   int
	FirstInterfaceIndex int

	CoolingPeriod   time.Duration
	MaxPods         int // 0: no cap
	ShrinkDelay     time.Duration
	ListingInterval time.Duration
	Subnets         []string
	SubnetTags      map[string]string
	SecurityGroups  []string

	// Cloud
	EC2Endpoint  string
	IMDSEndpoint string
	Region       string

	// Data path
	ExternalSNAT     bool
	ExcludeSNATCIDRs []netip.Prefix
	MTU              int // bytes; 0: the primary link's
	BlockMetadata    bool
	MarkShift        int

	// Serving
	WarmWait       time.Duration
	DrainTimeout   time.Duration
	CRISocket      string
	NetnsGrace     time.Duration
	RepairInterval time.Duration

	// Watching
	IntrospectionAddr string
	MetricsAddr       string
	Pprof             bool
	LogLevel          string
	LogFormat         string

	// Installation of the plugin
	InstallCNI  bool
	CNIBinDir   string
	CNIConfDir  string
	CNIConfName string
	CNIPlugin   string
	CNIVersion  string
	CNINetwork  string
	CNIChain    []string

	// Unknown are environment variables that begin with BERTH_ and mean nothing.
	Unknown []string
}

// CiliumDialect tells whether the warm addresses are asked for in Cilium's
// words rather than AWS's.
func (c *Config) CiliumDialect() bool {
	return c.MinAllocate >= 0 || c.PreAllocate >= 0 || c.MaxAboveWatermark >= 0
}
