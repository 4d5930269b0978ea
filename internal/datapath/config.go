package datapath

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Config is the wanted state of a node apart from its ENIs and pods.
type Config struct {
	// PrimaryMAC finds the primary link.
	PrimaryMAC net.HardwareAddr
	// PrimaryIPv4 is the source address of translated IPv4 packets. Needed
	// unless ExternalSNAT is set or LocalCIDRs has no IPv4.
	PrimaryIPv4 netip.Addr
	// PrimaryIPv6, when set, is the source of translated IPv6 packets. Leave it
	// zero, as is usual, to let pods leave with their own global address.
	PrimaryIPv6 netip.Addr
	// LocalCIDRs are the VPC's, of both families. One of IPv6 turns the IPv6
	// data path on.
	LocalCIDRs []netip.Prefix
	// ExcludeCIDRs are outside the VPC but see the pod's own address.
	ExcludeCIDRs []netip.Prefix
	// ExternalSNAT leaves translation to a NAT gateway: nothing is translated
	// and every packet leaves by the ENI of its source.
	ExternalSNAT bool
	// BlockMetadata keeps pods from 169.254.169.254 and fd00:ec2::254.
	BlockMetadata bool
	// MaxConnections is the most connections that a pod's address may have open
	// by the node's connection tracking, those that nobody answers included; 0: as
	// many as the node tracks.
	MaxConnections int
	// MTU of pod links and secondary ENIs in bytes; 0 takes the primary link's.
	MTU int
	// MarkShift moves the eight mark bits left, 0 to 24.
	MarkShift uint

	// ExportTable, when set, says that pods' addresses are of blocks of this
	// node (SetBlocks) and not of ENIs: nothing is translated, every packet
	// leaves as the main table says, and the fields above but BlockMetadata,
	// MaxConnections and MTU mean nothing. It is the routing table that an external routing daemon
	// reads.
	ExportTable int
	// EnableIPv6 turns the IPv6 data path on where ExportTable is set.
	EnableIPv6 bool
}

// pools tells whether addresses are of blocks.
func (c Config) pools() bool { return c.ExportTable != 0 }

// IPv6 tells whether the IPv6 data path is wanted.
func (c Config) IPv6() bool {
	if c.pools() {
		return c.EnableIPv6
	}
	return c.PrimaryIPv6.IsValid() || slices.ContainsFunc(c.LocalCIDRs, func(p netip.Prefix) bool {
		return p.Addr().Is6()
	})
}

// Validate names the first field that cannot work.
func (c Config) Validate() error {
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		return fmt.Errorf("MTU %d: want 0 or %d to %d", c.MTU, minMTU, maxMTU)
	}
	if c.MaxConnections < 0 || c.MaxConnections > math.MaxInt32 {
		return fmt.Errorf("MaxConnections %d: want 0 to %d", c.MaxConnections, math.MaxInt32)
	}
	if c.pools() {
		return c.validateExportTable()
	}
	if len(c.PrimaryMAC) != 6 {
		return fmt.Errorf("PrimaryMAC %q: want six octets", c.PrimaryMAC)
	}
	if c.PrimaryIPv4.IsValid() && !c.PrimaryIPv4.Is4() {
		return fmt.Errorf("PrimaryIPv4 %s: not an IPv4 address", c.PrimaryIPv4)
	}
	if c.PrimaryIPv6.IsValid() && !isIPv6(c.PrimaryIPv6) {
		return fmt.Errorf("PrimaryIPv6 %s: not an IPv6 address", c.PrimaryIPv6)
	}
	if len(c.LocalCIDRs) == 0 {
		return fmt.Errorf("LocalCIDRs: want the CIDRs of the VPC, got none")
	}
	for _, f := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"LocalCIDRs", c.LocalCIDRs}, {"ExcludeCIDRs", c.ExcludeCIDRs}} {
		if i := slices.IndexFunc(f.prefixes, isNoCIDR); i >= 0 {
			return fmt.Errorf("%s: %s is not a CIDR", f.name, f.prefixes[i])
		}
	}
	v4 := slices.ContainsFunc(c.LocalCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() })
	if v4 && !c.ExternalSNAT && !c.PrimaryIPv4.IsValid() {
		return fmt.Errorf("PrimaryIPv4: want the source address for SNAT, or ExternalSNAT")
	}
	if c.MarkShift > 24 {
		return fmt.Errorf("MarkShift %d: want 0 to 24", c.MarkShift)
	}
	return nil
}

func isNoCIDR(p netip.Prefix) bool { return !p.IsValid() || p.Addr().Is4In6() }

// validateExportTable: the kernel's own tables are 253 to 255 (rtnetlink(7)).
func (c Config) validateExportTable() error {
	t := c.ExportTable
	if t < 1 || t > math.MaxInt32 || t >= unix.RT_TABLE_DEFAULT && t <= unix.RT_TABLE_LOCAL ||
		t >= PodTable && t <= ENITableBase+MaxDeviceIndex {
		return fmt.Errorf("ExportTable %d: want a routing table that is nobody's: not %d to %d, which the kernel looks up, nor %d to %d, which Berth does",
			t, unix.RT_TABLE_DEFAULT, unix.RT_TABLE_LOCAL, PodTable, ENITableBase+MaxDeviceIndex)
	}
	return nil
}

// IPv6 needs links of 1280 bytes (RFC 8200 section 5), IPv4 of 68 (RFC 791);
// 65535 is the largest that veth takes.
const (
	minMTU = 576
	maxMTU = 65535
)

func (c Config) mark(m uint32) uint32 { return m << c.MarkShift }

func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }

// disjoint returns the prefixes of one family, masked, sorted, without those
// that another one contains.
func disjoint(prefixes []netip.Prefix, v4 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is4() == v4 {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, comparePrefix)
	kept := out[:0]
	for _, p := range out { // a containing prefix sorts before what it contains
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// families are the address families of the data path. IPv4 is always there:
// it costs nothing and a node without it does not exist in EC2.
func (c Config) families() []int {
	if c.IPv6() {
		return []int{unix.AF_INET, unix.AF_INET6}
	}
	return []int{unix.AF_INET}
}

// snat is the source of translated packets of a family; zero for no translation.
func (c Config) snat(family int) netip.Addr {
	switch {
	case c.ExternalSNAT || c.pools():
		return netip.Addr{}
	case family == unix.AF_INET:
		return c.PrimaryIPv4
	default:
		return c.PrimaryIPv6
	}
}

// direct are the destinations of one family that see a pod's own address.
func (c Config) direct(family int) []netip.Prefix {
	all := slices.Concat(c.LocalCIDRs, c.ExcludeCIDRs)
	if family == unix.AF_INET6 {
		all = append(all, netip.MustParsePrefix("fe80::/10")) // never leaves the link
	}
	return disjoint(all, family == unix.AF_INET)
}
