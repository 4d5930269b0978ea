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

// vpcDatapath is the part of uplinks.VPC that this needs.
type vpcDatapath interface {
	enisource.Datapath
	// SetLocalCIDRs changes the VPC's CIDRs. One of IPv6 turns the IPv6 data path on.
	SetLocalCIDRs(ctx context.Context, cidrs []netip.Prefix) (changed bool, err error)
}

// vpcNetworks keeps a data path to those of the VPC's CIDRs that are of families
// that pods have addresses of. It is the source's Datapath: no pod gets an IPv6
// address before the data path has IPv6.
type vpcNetworks struct {
	vpcDatapath
	// ask asks for the VPC's CIDRs; false: there is no answer.
	ask func(context.Context) (cidrs []netip.Prefix, ok bool)
	// onDemand: the operator decides on families. IPv6 comes on with the first ENI
	// that has IPv6 addresses for pods, whatever this node's setting is. Else the
	// setting alone decides.
	onDemand bool

	// noIPv4: the node has no IPv4 address, as its own subnet is of IPv6 alone. So pods have none.
	noIPv4 bool

	mu    sync.Mutex     // guards what follows, and is held while the data path changes
	cidrs []netip.Prefix // the VPC's, as the data path was last set up by them
	ipv6  bool           // the data path is to have IPv6 as soon as the VPC has
}

// ofPods are those of a VPC's CIDRs that are of families that pods have addresses
// of: IPv4, if the node has that, and IPv6 if asked for.
func (v *vpcNetworks) ofPods(cidrs []netip.Prefix, ipv6 bool) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(cidrs), func(p netip.Prefix) bool {
		if isIPv6(p) {
			return !ipv6
		}
		return v.noIPv4
	})
}

func isIPv6(p netip.Prefix) bool { return ipfamily.Of(p.Addr()) == ipfamily.IPv6 }

// start notes the VPC's CIDRs and whether the data path is to have IPv6 from the
// start, and returns what it should have.
func (v *vpcNetworks) start(cidrs []netip.Prefix, ipv6 bool) []netip.Prefix {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.cidrs, v.ipv6 = cidrs, ipv6
	return v.ofPods(cidrs, ipv6)
}

// set takes the VPC's CIDRs over. An error leaves the data path as it is.
func (v *vpcNetworks) set(ctx context.Context, all []netip.Prefix) (cidrs []netip.Prefix, changed bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	cidrs = v.ofPods(all, v.ipv6)
	if changed, err = v.SetLocalCIDRs(ctx, cidrs); err == nil {
		v.cidrs = all
	}
	return cidrs, changed, err
}

// SetENI implements the source's Datapath. It fails for an ENI with IPv6 addresses
// for pods while the data path cannot have IPv6, and for one with IPv4 addresses where the
// node has none.
func (v *vpcNetworks) SetENI(ctx context.Context, e eni.ENI) error {
	if v.noIPv4 && len(e.Addresses)+len(e.Prefixes) > 0 {
		return fmt.Errorf("the IPv4 addresses of %s: this node has none itself, as its subnet is of IPv6 alone, and pods can have IPv6 only (ip-families)", e.ID)
	}
	if hasIPv6(e) {
		if err := v.needIPv6(ctx); err != nil {
			return fmt.Errorf("turn IPv6 on for the addresses of %s: %w", e.ID, err)
		}
	}
	return v.vpcDatapath.SetENI(ctx, e)
}

// hasIPv6 tells whether an ENI has IPv6 addresses for pods.
func hasIPv6(e eni.ENI) bool { return len(e.IPv6)+len(e.IPv6Prefixes) > 0 }

// needIPv6 turns IPv6 on, unless it is on or this node's pods get none. A VPC may
// have got its IPv6 block since it was asked for its CIDRs.
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
			return errors.New("the instance metadata service tells of no IPv6 CIDR block of the VPC")
		}
	}
	if _, err := v.SetLocalCIDRs(ctx, v.ofPods(cidrs, true)); err != nil {
		return err
	}
	v.cidrs, v.ipv6 = cidrs, true
	return nil
}
