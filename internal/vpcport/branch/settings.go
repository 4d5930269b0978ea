// Package branch is the VPC port provider for EC2, which uses branch interfaces of instances. A port is an ENI. It is bound to an instance
// while it is a branch of the instance's trunk: frames with its VLAN ID on the trunk's link belong to the port, and EC2 enforces the
// port's security groups. Package internal/ec2/eni creates the trunks.
//
// The package handles these properties of EC2:
//
//   - A port is created in a subnet of its instance's zone, so its host must be known (Traits.NeedsHost). The client token follows from
//     the request: repeating a request whose reply was lost creates no second ENI.
//   - Listings lag behind changes. For Settings.Settle, replies take precedence.
//   - EC2 does not describe the trunk and the VLAN of a branch. Tags do, and are written before the branch is associated. Anybody in the
//     account may write tags, so replies to this process take precedence over tags.
//   - EC2 does not describe the ID of an association either, and without it the association cannot be ended. A tag records the ID
//     afterwards. If a process ended before that, the next one repeats the request, whose client token follows from the tags.
//   - EC2 refuses a VLAN that another branch of the trunk has: the package tries the next VLAN.
//   - Deleting a branch ends its association.
//   - Each ENI has an IPv4 address and, in a subnet with an IPv6 block, as many IPv6 addresses as requested. Settings.Families decides
//     which of them belong to the port.
package branch

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/vpcport"
)

// Cloud is the part of cloud.API that the provider uses.
type Cloud interface {
	cloud.Trunks
	ENIs(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error)
	Subnets(ctx context.Context, f cloud.SubnetFilter) ([]cloud.Subnet, error)
	CreateENI(ctx context.Context, r cloud.CreateENI) (cloud.ENI, error)
	DeleteENI(ctx context.Context, eniID string) error
	Tag(ctx context.Context, resourceID string, tags map[string]string) error
}

const (
	// Cooling is the default time for which an unused branch is kept and a VLAN is not reused. It is the same as in the Amazon VPC resource
	// controller.
	Cooling = time.Minute
	// Settle is the default time for which replies take precedence over listings.
	Settle = time.Minute
)

// Settings configure a provider.
type Settings struct {
	Cloud   Cloud
	Cluster string // the value of eni.TagCluster
	VPC     string // the ID of the VPC
	// Subnets are the IDs of the subnets for ports that request none, at least one per zone; nil: the subnet of the instance's trunk.
	Subnets []string
	// Families are the address families of a port; empty: IPv4. EC2 gives each ENI an IPv4 address
	// except in IPv6-only subnets; an IPv6-only port ignores it.
	Families ipfamily.Set
	Settle   time.Duration // 0: Settle
	Cooling  time.Duration // 0: Cooling
	// Ended is closed when the provider is no longer used, and ends its background work; nil: the provider is used until the process ends.
	Ended  <-chan struct{}
	Clock  clock.Clock  // nil: the machine's clock
	Logger *slog.Logger // nil: no logging
}

// Provider creates branch interfaces. It implements vpcport.Provider and vpcport.Resolver.
type Provider struct {
	s         Settings
	trunks    *trunks
	subnets   *subnets
	placement *placement
	vlans     *vlans
	memory    *memory
	notes     *notes
}

var (
	_ vpcport.Provider = (*Provider)(nil)
	_ vpcport.Resolver = (*Provider)(nil)
)

// Open returns a provider. It makes no calls.
func Open(s Settings) *Provider {
	s.Clock = cmp.Or[clock.Clock](s.Clock, clock.Real{})
	s.Logger = cmp.Or(s.Logger, slog.New(slog.DiscardHandler))
	s.Settle, s.Cooling = cmp.Or(s.Settle, Settle), cmp.Or(s.Cooling, Cooling)
	p := &Provider{s: s, trunks: newTrunks(s), subnets: newSubnets(s), vlans: newVLANs(s.Clock, s.Cooling), memory: newMemory(s.Clock, s.Settle)}
	p.placement, p.notes = &placement{s, p.trunks, p.subnets}, newNotes(s, p.memory)
	return p
}

// maxFilter is the maximum number of values in a filter (EC2 API Reference, Filter).
const maxFilter = 200

// atOnce is the maximum number of calls in flight. Package pace limits their rate.
const atOnce = 128

// Traits implements vpcport.Provider.
func (p *Provider) Traits() vpcport.Traits {
	return vpcport.Traits{MaxBatch: 1, MaxFilter: maxFilter, NeedsHost: true, Idempotent: true, OneEach: true, AtOnce: atOnce, Warm: true, Cooling: p.s.Cooling}
}
