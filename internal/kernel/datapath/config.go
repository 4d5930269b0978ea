package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
)

// Config is the wanted state of a node apart from its ENIs, blocks and pods.
type Config struct {
	// Uplinks is how packets of pods leave the node: a VPC, a Routed or Ports.
	Uplinks Uplinks
	// BlockMetadata keeps pods from 169.254.169.254 and fd00:ec2::254.
	BlockMetadata bool
	// MaxConnections is the most connections that a pod's address may have open
	// by the node's connection tracking, those that nobody answers included; 0: as
	// many as the node tracks.
	MaxConnections int
	// MTU of pod links and secondary ENIs in bytes; 0 takes the primary link's or,
	// where addresses are routed, the smallest of the links that packets leave by.
	MTU int
	// Sysctls is the folder of the kernel's settings; /proc/sys if empty. A container
	// that is not privileged has that one read-only, and may have it elsewhere too.
	Sysctls string
	// Log is told of settings that change; nil: nobody.
	Log *slog.Logger
}

// Validate names the first field that cannot work.
func (c Config) Validate() error {
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		return fmt.Errorf("MTU %d: want 0 or %d to %d", c.MTU, minMTU, maxMTU)
	}
	if c.MaxConnections < 0 || c.MaxConnections > math.MaxInt32 {
		return fmt.Errorf("MaxConnections %d: want 0 to %d", c.MaxConnections, math.MaxInt32)
	}
	if c.Uplinks == nil {
		return errors.New("Uplinks: want a VPC, a Routed or Ports")
	}
	return c.Uplinks.validate()
}

// IPv6 needs links of 1280 bytes (RFC 8200 section 5), IPv4 of 68 (RFC 791);
// 65535 is the largest that veth takes.
const (
	minMTU = 576
	maxMTU = 65535
)

// disjoint returns the prefixes of one family, masked, sorted, without those
// that another one contains.
func disjoint(prefixes []netip.Prefix, v4 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is4() == v4 {
			out = append(out, p.Masked())
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	kept := out[:0]
	for _, p := range out { // a containing prefix sorts before what it contains
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}
