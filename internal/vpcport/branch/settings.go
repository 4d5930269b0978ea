// Package branch is a provider of VPC ports: branch interfaces of EC2 instances. A port is an
// ENI, and bound to an instance while it is a branch of the instance's trunk: what the
// trunk's link carries with the VLAN's ID is the port's, and EC2 enforces the port's
// security groups. The trunks are made elsewhere (internal/ec2/eni).
//
// What EC2 is like, and what follows:
//
//   - A port is made in a subnet of the zone of its instance: nothing is made before the
//     host is known (Traits.NeedsHost). The same request has the same client token, so
//     that one whose reply was lost makes no second ENI.
//   - Listings trail changes. What a reply told outranks them for Settings.Settle.
//   - Nothing that EC2 describes tells of which trunk an ENI is a branch, and under which
//     VLAN: tags do, which are written before the branch is associated. Anybody in the
//     account may write tags; what this process was told by a reply it believes more.
//   - Nothing tells the ID of an association either, without which it cannot be ended: it is
//     written down as a tag afterwards. Where a process ended before it could, the same
//     request is made again, whose client token follows from the tags.
//   - EC2 refuses a VLAN that another branch of the trunk has: the next one is tried.
//   - An ENI that is a branch may be deleted, which ends the association.
//   - Each ENI has an address of IPv4, and of a subnet with a block of IPv6 as many of that as are
//     asked for. Which of them are the port's follows from Settings.Families.
//
// The files:
//
//	settings.go  what a provider is made of
//	tags.go      by what its ENIs are known
//	network.go   Provider.Network; the subnets
//	port.go      an ENI as a port
//	list.go      Provider.Ports and Get
//	memory.go    what replies told
//	create.go    Provider.Create
//	change.go    Provider.Update and Delete
//	bind.go      a port as a branch of an instance's trunk
//	notes.go     the IDs of associations, written down when no pod waits
//	trunks.go    which instance has which trunk
//	vlans.go     which VLAN is next
//	errors.go    failures into classes
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

// Cloud is what the provider asks of EC2: calls of cloud.API.
type Cloud interface {
	cloud.Trunks
	ENIs(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error)
	Subnets(ctx context.Context, f cloud.SubnetFilter) ([]cloud.Subnet, error)
	CreateENI(ctx context.Context, r cloud.CreateENI) (cloud.ENI, error)
	DeleteENI(ctx context.Context, eniID string) error
	Tag(ctx context.Context, resourceID string, tags map[string]string) error
}

const (
	// Cooling is how long a branch is kept that no pod has any more, and a VLAN is not
	// used again, by default: as long as the Amazon VPC resource controller does.
	Cooling = time.Minute
	// Settle is how long a reply outranks listings, by default.
	Settle = time.Minute
)

// Settings are what a provider is made of.
type Settings struct {
	Cloud   Cloud
	Cluster string // the value of eni.TagCluster
	VPC     string // the ID of the VPC
	// Subnets are those of ports for which none is asked, one of each zone at least; nil:
	// the subnet of the instance's trunk.
	Subnets []string
	// Families are those of which each port has an address; empty: IPv4. EC2 gives each ENI one of
	// IPv4, but in IPv6-only subnets, which a port of IPv6 alone does not have.
	Families ipfamily.Set
	Settle   time.Duration // 0: Settle
	Cooling  time.Duration // 0: Cooling
	// Ended is closed once nobody uses the provider any more, so that what it does by itself ends too;
	// nil: somebody does for as long as the process is there.
	Ended  <-chan struct{}
	Clock  clock.Clock  // nil: the machine's
	Logger *slog.Logger // nil: nothing is logged
}

// Provider makes branch interfaces. It implements vpcport.Provider.
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

// Open makes a provider. It talks to nobody.
func Open(s Settings) *Provider {
	s.Clock = cmp.Or[clock.Clock](s.Clock, clock.Real{})
	s.Logger = cmp.Or(s.Logger, slog.New(slog.DiscardHandler))
	s.Settle, s.Cooling = cmp.Or(s.Settle, Settle), cmp.Or(s.Cooling, Cooling)
	p := &Provider{s: s, trunks: newTrunks(s), subnets: newSubnets(s), vlans: newVLANs(s.Clock, s.Cooling), memory: newMemory(s.Clock, s.Settle)}
	p.placement, p.notes = &placement{s, p.trunks, p.subnets}, newNotes(s, p.memory)
	return p
}

// maxFilter is how many values a filter of a listing may have (EC2 API Reference, Filter).
const maxFilter = 200

// atOnce is how many calls may be under way: EC2 limits their rate, which package pace keeps.
const atOnce = 128

// Traits implements vpcport.Provider.
func (p *Provider) Traits() vpcport.Traits {
	return vpcport.Traits{MaxBatch: 1, MaxFilter: maxFilter, NeedsHost: true, Idempotent: true, OneEach: true, AtOnce: atOnce, Warm: true, Cooling: p.s.Cooling}
}
