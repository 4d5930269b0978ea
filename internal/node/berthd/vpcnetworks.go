package berthd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/source/enisource"
)

// vpcDatapath is the part of uplinks.VPC that is used here.
type vpcDatapath interface {
	enisource.Datapath
	// SetLocalCIDRs sets the VPC's CIDRs. An IPv6 CIDR turns the IPv6 data path on.
	SetLocalCIDRs(ctx context.Context, cidrs []netip.Prefix) (changed bool, err error)
}

// vpcNetworks applies those of the VPC's CIDRs whose family pods use to the data path. It is also the
// source's Datapath, so that no pod gets an IPv6 address before the data path supports IPv6.
type vpcNetworks struct {
	vpcDatapath
	// ask reads the VPC's CIDRs; false means that they are unknown.
	ask func(context.Context) (cidrs []netip.Prefix, ok bool)
	// onDemand: the operator decides on families, and the first ENI with IPv6 addresses for pods turns
	// IPv6 on. Otherwise the node's setting decides.
	onDemand bool

	// noIPv4: the node's subnet is IPv6-only, so pods have no IPv4 addresses.
	noIPv4 bool

	mu    sync.Mutex     // guards the fields below; held while the data path changes
	cidrs []netip.Prefix // the VPC's, as last applied
	ipv6  bool           // IPv6 is on as soon as the VPC has it
}

// ofPods returns the CIDRs whose family pods use: IPv4 if the node has it, and IPv6 if requested.
func (v *vpcNetworks) ofPods(cidrs []netip.Prefix, ipv6 bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(cidrs), func(p netip.Prefix) bool {
		if isIPv6(p) {
			return !ipv6
		}
		return v.noIPv4
	})
}

func isIPv6(p netip.Prefix) bool { return ipfamily.Of(p.Addr()) == ipfamily.IPv6 }

// start sets the VPC's CIDRs and whether IPv6 is initially on, and returns the CIDRs for the data
// path.
func (v *vpcNetworks) start(cidrs []netip.Prefix, ipv6 bool) []netip.Prefix {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cidrs, v.ipv6 = cidrs, ipv6
	return v.ofPods(cidrs, ipv6)
}

// set applies the VPC's CIDRs. On an error the data path is unchanged.
func (v *vpcNetworks) set(ctx context.Context, all []netip.Prefix) (cidrs []netip.Prefix, changed bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	cidrs = v.ofPods(all, v.ipv6)
	if changed, err = v.SetLocalCIDRs(ctx, cidrs); err == nil {
		v.cidrs = all
	}
	return cidrs, changed, err
}

// SetENI implements the source's Datapath. It fails for an ENI of a family that the data path does not
// support.
func (v *vpcNetworks) SetENI(ctx context.Context, e eni.ENI) error {
	if v.noIPv4 && len(e.Addresses)+len(e.Prefixes) > 0 {
		return fmt.Errorf("the IPv4 addresses of %s: this node's subnet is IPv6-only, so its pods can have IPv6 only (ip-families)", e.ID)
	}
	if hasIPv6(e) {
		if err := v.needIPv6(ctx); err != nil {
			return fmt.Errorf("turn IPv6 on for the addresses of %s: %w", e.ID, err)
		}
	}
	return v.vpcDatapath.SetENI(ctx, e)
}

// hasIPv6 reports whether an ENI has IPv6 addresses for pods.
func hasIPv6(e eni.ENI) bool { return len(e.IPv6)+len(e.IPv6Prefixes) > 0 }

// needIPv6 turns IPv6 on unless it is on or disabled. It reads the VPC's CIDRs again, because an IPv6
// block may have been added to the VPC since.
func (v *vpcNetworks) needIPv6(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	cidrs, known := v.cidrs, slices.ContainsFunc(v.cidrs, isIPv6)
	if v.ipv6 && known || !v.ipv6 && !v.onDemand {
		return nil
	}
	if !known {
		var ok bool
		if cidrs, ok = v.ask(ctx); !ok || !slices.ContainsFunc(cidrs, isIPv6) {
			return errors.New("the instance metadata service reports no IPv6 CIDR block of the VPC")
		}
	}
	if _, err := v.SetLocalCIDRs(ctx, v.ofPods(cidrs, true)); err != nil {
		return err
	}
	v.cidrs, v.ipv6 = cidrs, true
	return nil
}
