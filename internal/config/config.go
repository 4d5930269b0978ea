// Package config is the settings of Berth's programs: for each one table that
// flags, environment variables, their checks and the reference page are all
// made from.
package config

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
)

// The values of ipam.
const (
	IPAMENI         = "eni"          // node mode: berthd calls EC2 itself
	IPAMENIOperator = "eni-operator" // operator mode: the cluster's operator does
	IPAMPool        = "pool"         // address pools: nobody does; the operator gives blocks
	IPAMPort        = "port"         // ports of VPCs: nobody does; the operator has them made
	IPAMNone        = "none"         // another network: berth comes after its plugins, for egress
)

// The values of Config.ForeignAddresses.
const (
	ForeignTell   = "tell"
	ForeignRemove = "remove"
)

// The values of pod-events.
const (
	PodEventsAuto   = "auto" // wherever the Kubernetes API is used or in reach
	PodEventsAlways = "always"
	PodEventsNever  = "never"
)

// Config is every setting of berthd, parsed and checked.
type Config struct {
	// Node
	NodeName    string
	Namespace   string // of berthd's pod; empty out of a cluster
	ClusterName string
	StateDir    string
	Socket      string

	// Where addresses come from
	IPAM                  string // IPAMENI, IPAMENIOperator, IPAMPool, IPAMPort or IPAMNone
	AutoCreateNodeNetwork bool
	Kubeconfig            string // empty: in the cluster
	NodeNetworkTemplates  bool   // of node mode: NodeNetworkTemplates count
	IPFamilies            ipfamily.Set

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

	FollowSecurityGroups bool // in node mode

	SecurityGroupTags   map[string]string // in operator mode, for the NodeNetwork
	UsePrimaryAddress   bool              // likewise
	TrunkENI            bool              // likewise
	DeleteOnTermination bool

	// Address pools
	BlockWatermark          int // percent of a block
	BlockReleaseDelay       time.Duration
	BlockClaimInterval      time.Duration
	ExportTable             int
	WithdrawOnExit          bool
	IgnoreUntoldAnnotations bool

	// VPC ports
	VPCPorts        bool     // also beside another source of addresses; see HasPorts
	OVSDB           string   // empty: there is no Open vSwitch
	OVSBridges      []string // that ports may be plugged into
	PortWait        time.Duration
	AgentNamespaces []string // what names of VPCs' network namespaces begin with
	AgentWait       time.Duration
	GroupEnforcing  string // strict or standard

	// Egress
	Egress                bool
	EgressPort            int // UDP
	EgressClusterNetworks []netip.Prefix
	EgressWait            time.Duration
	EgressGatewayWait     time.Duration
	EgressProbeInterval   time.Duration // 0: gateways are not asked

	// Cloud
	EC2Endpoint  string
	IMDSEndpoint string
	IMDSMode     string // is in IMDSEndpoint
	Region       string

	// Data path
	ExternalSNAT     bool
	IPv4Egress       bool // pods without an IPv4 address get a node-local one
	IPv6Egress       bool // likewise
	ExcludeSNATCIDRs []netip.Prefix
	MTU              int // bytes; 0: the primary link's
	SysctlDir        string
	BlockMetadata    *bool // nil: not set, see BlocksMetadata
	MaxConnections   int   // of one pod; 0: no limit
	MarkShift        int

	// Serving
	WarmWait       time.Duration
	DrainTimeout   time.Duration
	CRISocket      string
	NetnsGrace     time.Duration
	RepairInterval time.Duration
	// ForeignAddresses is what is done about addresses of running pods on the node's links: ForeignTell or ForeignRemove.
	ForeignAddresses string

	// Watching
	IntrospectionAddr string
	MetricsAddr       string
	PodEvents         string // PodEventsAuto, PodEventsAlways or PodEventsNever
	Pprof             bool
	LogLevel          string
	LogFormat         string

	// Installation of the plugin
	InstallCNI  bool
	CNIBinDir   string
	CNIConfDir  string
	CNIConfName string
	CNIPlugin   string
	CNIVolatile bool
	CNIBundle   string // empty: beside berthd
	CNIVersion  string
	CNINetwork  string
	CNIChain    []string

	// Unknown are environment variables that begin with BERTH_ and mean nothing.
	Unknown []string
	// Effective is every setting as it was given, or its default, for people.
	Effective []introspect.Setting
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
	p.MaxENI, p.MaxPods, p.PrefixDelegation, p.Families = c.MaxENI, c.MaxPods, c.PrefixDelegation, c.IPFamilies
	return p
}

// BlocksMetadata tells whether pods are kept from the metadata service, which gives
// the credentials of the instance's role to whoever asks. They are unless the settings
// say otherwise.
func (c *Config) BlocksMetadata() bool { return c.BlockMetadata == nil || *c.BlockMetadata }

// HasPorts tells whether pods have NICs that are ports of VPCs.
func (c *Config) HasPorts() bool { return c.VPCPorts || c.IPAM == IPAMPort }

// Logger logs as the settings ask for.
func (c Config) Logger(w io.Writer) *slog.Logger { return newLogger(w, c.LogLevel, c.LogFormat) }

// finish fills in what is not set and finds what is wrong with settings together.
func (c *Config) finish(unknown []string, effective []introspect.Setting) []error {
	c.Unknown, c.Effective = unknown, effective
	c.IMDSEndpoint = imdsURL(c.IMDSEndpoint, c.IMDSMode)
	c.Namespace = ownNamespace()
	if c.NodeName == "" {
		c.NodeName, _ = os.Hostname()
	}
	return c.contradictions()
}

// contradictions finds settings that are right alone and wrong together.
func (c *Config) contradictions() []error {
	aws := c.WarmENITarget >= 0 || c.WarmIPTarget >= 0 || c.MinimumIPTarget >= 0 || c.WarmPrefixTarget >= 0
	out := wrongTogether([]contradiction{
		{aws && c.CiliumDialect(),
			"--warm-eni-target, --warm-ip-target, --minimum-ip-target and --warm-prefix-target cannot be mixed with --min-allocate, --pre-allocate, --max-above-watermark and --max-allocate: use one dialect"},
		{len(c.Subnets) > 0 && len(c.SubnetTags) > 0, "--subnets and --subnet-tags exclude each other"},
		{c.IPAM != IPAMENIOperator && c.AutoCreateNodeNetwork, "--auto-create-node-network needs --ipam=eni-operator: without it there is no NodeNetwork"},
		{c.Kubeconfig != "" && !c.asksKubernetes(), "--kubeconfig has no use with --ipam=eni and --pod-events=never: node mode uses the Kubernetes API for Events, --node-network-templates and --egress only"},
		{c.IPAM != IPAMENI && c.NodeNetworkTemplates, "--node-network-templates needs --ipam=eni: with --ipam=eni-operator the operator applies NodeNetworkTemplates, and elsewhere there are no ENIs"},
		{len(c.SecurityGroups) > 0 && len(c.SecurityGroupTags) > 0, "--security-groups and --security-group-tags exclude each other"},
		{c.IPAM != IPAMENI && !c.FollowSecurityGroups, "--follow-security-groups=false needs --ipam=eni: elsewhere security groups do not follow those of the primary ENI"},
		{c.IPAM != IPAMPool && c.WithdrawOnExit, "--withdraw-on-exit needs --ipam=pool"},
		{c.IPAM != IPAMPool && !c.HasPorts() && c.IgnoreUntoldAnnotations, "--ignore-untold-annotations needs --ipam=pool, --ipam=port or --vpc-ports"},
		{c.IPAM != IPAMPool && c.ExportTable != defaultExportTable, "--export-table needs --ipam=pool"},
		{c.IntrospectionAddr != "" && c.IntrospectionAddr == c.MetricsAddr, "--introspection-address and --metrics-address are both " + c.MetricsAddr},
	})
	if c.IPAM == IPAMENI {
		out = append(out, c.contradictionsOfNodeMode()...)
	}
	out = append(out, c.contradictionsOfPorts()...)
	out = append(out, c.contradictionsOfEgress()...)
	if c.IPAM == IPAMPool || c.IPAM == IPAMPort || c.IPAM == IPAMNone {
		out = append(out, c.withoutMeaningWithoutENIs()...)
	}
	return out
}

// contradictionsOfNodeMode finds settings that are of a NodeNetwork, which node mode lacks.
func (c *Config) contradictionsOfNodeMode() []error {
	return wrongTogether([]contradiction{
		{len(c.SecurityGroupTags) > 0, "--security-group-tags needs --ipam=eni-operator: in node mode use --security-groups"},
		{c.UsePrimaryAddress, "--use-primary-address needs --ipam=eni-operator"},
		{c.TrunkENI, "--trunk-eni needs --ipam=eni-operator: in node mode nobody makes branches"},
	})
}

// asksKubernetes tells whether the daemon uses the Kubernetes API for anything.
func (c *Config) asksKubernetes() bool {
	return c.IPAM != IPAMENI || c.PodEvents != PodEventsNever || c.Egress || c.NodeNetworkTemplates
}

// contradiction is a condition that must not hold, and what is said where it does.
type contradiction struct {
	holds bool
	text  string
}

func wrongTogether(all []contradiction) (out []error) {
	for _, c := range all {
		if c.holds {
			out = append(out, errors.New(c.text))
		}
	}
	return out
}
