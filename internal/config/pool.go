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

// PoolSettings are those of address pools.
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
			Doc: "With ipam=pool, how many addresses of a block, rounded down, are to be free in each pool that the node uses, and in the pool called default: when there are fewer, another block is asked for. 0 asks when a pod waits."},
		{Flag: "block-release-delay", Default: "5m", parse: duration(&c.BlockReleaseDelay, 0, 30*day),
			Doc: "With ipam=pool, how long a block has no used and no cooling address before it goes back, if the others keep the watermark."},
		{Flag: "block-claim-interval", Default: "20s", parse: duration(&c.BlockClaimInterval, 100*time.Millisecond, day),
			Doc: "With ipam=pool, how often the node's blocks are claimed while its Node object is missing, so that they are not released: a few times within the operator's block-claim-grace. While the Node is there nothing is written."},
		{Flag: "export-table", Default: strconv.Itoa(defaultExportTable), parse: routingTable(&c.ExportTable),
			Doc: "With ipam=pool, the number of the routing table with one route for each block of the node, for an external routing daemon to read. No rule looks it up."},
		{Flag: "ignore-untold-annotations", Default: "false", bare: true, parse: boolean(&c.IgnoreUntoldAnnotations),
			Doc: "With ipam=pool, take a pod whose annotations the container runtime does not tell for one without any. Multus does not tell them. A pod that chose a pool by its annotation then gets an address of its namespace's pool, unnoticed. Else such a pod gets none where a pool lets its namespace choose. With ports of VPCs, such a pod gets the NICs that the operator has made for it by then; else none, with an error where its namespace names a VPC."},
		{Flag: "withdraw-on-exit", Default: "false", bare: true, parse: boolean(&c.WithdrawOnExit),
			Doc: "With ipam=pool, remove the routes from export-table when the daemon ends: the pods that stay are cut off from other nodes until another runs."},
	}
}

// routingTable takes the number of a table that the kernel does not look up by
// itself: 253 to 255 are default, main and local (rtnetlink(7)).
func routingTable(dst *int) parser {
	return parser{func(s string) error {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 || v > math.MaxInt32 || v >= 253 && v <= 255 {
			return fmt.Errorf("expected the number of a routing table from 1 to %d, but for 253 to 255, which the kernel uses", math.MaxInt32)
		}
		*dst = v
		return nil
	}, Form{Kind: Integer, Low: 1, High: math.MaxInt32}}
}

// withoutMeaningWithoutENIs finds settings that mean nothing where addresses come
// from pools, or are those of ports or of another network.
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
	return []error{fmt.Errorf("%s: of no meaning with --ipam=%s: addresses %s, not from ENIs, and nothing is translated", strings.Join(idle, ", "), c.IPAM, from)}
}
