package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
)

// defaultExportTable is the table that the routing daemons of Coil's design read.
const defaultExportTable = 119

// PoolSettings are the settings of address pools.
type PoolSettings struct {
	BlockWatermark          int // percent of a block
	BlockReleaseDelay       time.Duration
	BlockClaimInterval      time.Duration
	ExportTable             int
	WithdrawOnExit          bool
	IgnoreUntoldAnnotations bool
}

func (c *PoolSettings) rows() []Setting {
	return []Setting{
		{Flag: "block-watermark", Default: "25", Unit: "percent", parse: integer(&c.BlockWatermark, 100, 0),
			Doc: "With ipam=pool, the share of a block that must be free in each pool that the node uses and in the pool called default, in addresses rounded down. When fewer are free, the daemon requests another block. 0: it requests one when a pod waits."},
		{Flag: "block-release-delay", Default: "5m", parse: duration(&c.BlockReleaseDelay, 0, 30*day),
			Doc: "With ipam=pool, how long a block must have no used and no cooling address before it is released, if the others meet the watermark."},
		{Flag: "block-claim-interval", Default: "20s", parse: duration(&c.BlockClaimInterval, 100*time.Millisecond, day),
			Doc: "With ipam=pool, how often the node's blocks are claimed while its Node object is missing, so that the operator does not release them. It should be a fraction of the operator's block-claim-grace. Nothing is written while the Node exists."},
		{Flag: "export-table", Default: strconv.Itoa(defaultExportTable), parse: routingTable(&c.ExportTable),
			Doc: "With ipam=pool, the number of the routing table that has one route for each block of the node, for an external routing daemon. No rule uses this table."},
		{Flag: "ignore-untold-annotations", Default: "false", bare: true, parse: boolean(&c.IgnoreUntoldAnnotations),
			Doc: "With ipam=pool, treat a pod whose annotations the container runtime does not pass on as one without annotations. Multus does not pass them on. A pod that selects a pool by annotation then silently gets an address of its namespace's pool. If false, such a pod gets no address where a pool lets its namespace choose. With ports of VPCs, such a pod gets the NICs that the operator has created for it so far; if false, it gets none, with an error if its namespace names a VPC."},
		{Flag: "withdraw-on-exit", Default: "false", bare: true, parse: boolean(&c.WithdrawOnExit),
			Doc: "With ipam=pool, remove the routes from export-table when the daemon shuts down. Running pods are cut off from other nodes until the next daemon runs."},
	}
}

// routingTable parses the number of a routing table that the kernel does not look up by itself; 253 to 255 are
// default, main and local (rtnetlink(7)).
func routingTable(dst *int) parser {
	return parser{func(s string) error {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 || v > math.MaxInt32 || v >= 253 && v <= 255 {
			return fmt.Errorf("expected the number of a routing table from 1 to %d, except 253 to 255, which the kernel uses", math.MaxInt32)
		}
		*dst = v
		return nil
	}, Form{Kind: Integer, Low: 1, High: math.MaxInt32}}
}

// withoutMeaningWithoutENIs finds settings that have no effect if addresses do not come from ENIs.
func (c *Config) withoutMeaningWithoutENIs() []error {
	var idle []string
	for _, s := range []struct {
		flag string
		set  bool
	}{
		{"--warm-eni-target", c.WarmENITarget >= 0}, {"--warm-ip-target", c.WarmIPTarget >= 0},
		{"--minimum-ip-target", c.MinimumIPTarget >= 0}, {"--warm-prefix-target", c.WarmPrefixTarget >= 0},
		{"--min-allocate", c.MinAllocate >= 0}, {"--pre-allocate", c.PreAllocate >= 0},
		{"--max-above-watermark", c.MaxAboveWatermark >= 0}, {"--max-allocate", c.MaxAllocate >= 0},
		{"--max-eni", c.MaxENI > 0}, {"--first-interface-index", c.FirstInterfaceIndex >= 0},
		{"--ip-families", c.IPFamilies.Has(ipfamily.IPv6)},
		{"--enable-prefix-delegation", c.PrefixDelegation}, {"--use-primary-address", c.UsePrimaryAddress},
		{"--trunk-eni", c.TrunkENI},
		{"--subnets", len(c.Subnets) > 0}, {"--subnet-tags", len(c.SubnetTags) > 0},
		{"--security-groups", len(c.SecurityGroups) > 0}, {"--security-group-tags", len(c.SecurityGroupTags) > 0},
		{"--external-snat", c.ExternalSNAT}, {"--exclude-snat-cidrs", len(c.ExcludeSNATCIDRs) > 0},
		{"--enable-v6-egress", c.IPv6Egress},
	} {
		if s.set {
			idle = append(idle, s.flag)
		}
	}
	if len(idle) == 0 {
		return nil
	}
	from := "come from AddressPools"
	if c.IPAM == IPAMPort {
		from = "are those of ports of VPCs"
	}
	if c.IPAM == IPAMNone {
		from = "are another network's"
	}
	return []error{fmt.Errorf("%s: no effect with --ipam=%s: addresses %s, not from ENIs, and are not translated", strings.Join(idle, ", "), c.IPAM, from)}
}
