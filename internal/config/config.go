// Package config is berthd's settings: one table that flags, environment
// variables, their checks and the reference page are all made from.
package config

import (
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ipam"
)

// The values of ipam.
const (
	IPAMENI      = "eni"          // node mode: berthd calls EC2 itself
	IPAMOperator = "eni-operator" // operator mode: the cluster's operator does
)

// Config is every setting of berthd, parsed and checked.
type Config struct {
	// Node
	NodeName    string
	ClusterName string
	StateDir    string
	Socket      string

	// Who calls EC2
	IPAM                  string // IPAMENI or IPAMOperator
	AutoCreateNodeNetwork bool
	Kubeconfig            string // empty: in the cluster

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
	MaxAllocate         int
	FirstInterfaceIndex int

	CoolingPeriod   time.Duration
	MaxPods         int // 0: no cap
	ShrinkDelay     time.Duration
	ListingInterval time.Duration
	SettleTime      time.Duration
	OrphanAge       time.Duration
	OrphanInterval  time.Duration
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
	return c.MinAllocate >= 0 || c.PreAllocate >= 0 || c.MaxAboveWatermark >= 0 || c.MaxAllocate >= 0
}

// Policy is the warm-pool policy that the settings ask for: the dialect's
// defaults with what is set in their place.
func (c *Config) Policy() ipam.Policy {
	p := ipam.DefaultAWS()
	if c.CiliumDialect() {
		p = ipam.DefaultCilium()
	}
	for _, v := range []struct {
		to  *int
		set int
	}{
		{&p.WarmENI, c.WarmENITarget}, {&p.WarmIP, c.WarmIPTarget}, {&p.MinimumIP, c.MinimumIPTarget}, {&p.WarmPrefix, c.WarmPrefixTarget},
		{&p.MinAllocate, c.MinAllocate}, {&p.PreAllocate, c.PreAllocate}, {&p.MaxAboveWatermark, c.MaxAboveWatermark}, {&p.MaxAllocate, c.MaxAllocate},
		{&p.FirstInterfaceIndex, c.FirstInterfaceIndex},
	} {
		if v.set >= 0 {
			*v.to = v.set
		}
	}
	p.MaxENI, p.MaxPods, p.PrefixDelegation = c.MaxENI, c.MaxPods, c.PrefixDelegation
	return p
}
