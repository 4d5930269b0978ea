package eni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/mac"
)

// publisher passes the inventory to the node, as derived from the view. It belongs to the reconciler's goroutine.
//
// There are two ways. Releases are recorded before the cloud is called: record returns an error, and without the
// record there is no call. All other changes are published after the reply to the call that made them, before
// anything depends on them.
type publisher struct {
	cfg      *Config
	view     *view
	instance *instance
	ended    func() bool

	due bool // the inventory has changed since the last publication
}

// changed makes the next flush publish.
func (p *publisher) changed() { p.due = true }

// flush publishes changes. A failure is logged; the next change or observation publishes again.
func (p *publisher) flush(ctx context.Context) {
	if p.due {
		_ = p.record(ctx)
	}
}

// record publishes the current inventory. A failure is logged.
func (p *publisher) record(ctx context.Context) error {
	p.due = false
	if p.ended() {
		return errors.New("record the inventory: the node was removed")
	}
	if err := p.view.freshness.mayPublish(); err != nil {
		return fmt.Errorf("record the inventory: %w", err)
	}
	if err := p.cfg.Node.Publish(ctx, p.inventory()); err != nil {
		if ctx.Err() == nil { // otherwise the program is ending, and the next one records it
			p.cfg.Logger.Error("inventory not recorded", "err", err)
		}
		return fmt.Errorf("record the inventory: %w", err)
	}
	return nil
}

// inventory returns the view in the form for a Node.
func (p *publisher) inventory() Inventory {
	cfg, now := p.cfg, p.cfg.Clock.Now()
	inv := Inventory{InstanceID: cfg.InstanceID, InstanceType: p.instance.typ, Families: cfg.Policy.Families, Limits: p.instance.limits, At: p.view.freshness.replied}
	list := p.view.list()
	for _, k := range list {
		if k.trunk {
			continue
		}
		since, leaving := p.view.detaching[k.ID]
		if k.phase() == plan.Detaching {
			since, leaving = k.replied, true
		}
		attached := leaving && k.phase() == plan.Attached
		if leaving && (p.view.fresh(since, now) || attached && cfg.process.sharesNode) {
			inv.Leaving = append(inv.Leaving, Leave{ENI: k.ID, DeviceIndex: k.index(), Since: since, Attached: attached})
		}
		if leaving || !k.ours() || k.phase() != plan.Attached {
			continue
		}
		if inv.ENIs == nil {
			inv.ENIs = make([]ENI, 0, len(list))
		}
		inv.ENIs = append(inv.ENIs, p.published(k))
		inv.Releasing = append(inv.Releasing, k.returning()...)
	}
	return inv
}

// published returns an ENI in the form for a Node.
func (p *publisher) published(k *known) ENI {
	e := ENI{
		ID: k.ID, MAC: mac.Addr(k.MAC), DeviceIndex: k.index(), Primary: primary(k.Attachment),
		Serves: k.index() >= p.cfg.Policy.FirstInterfaceIndex, SubnetID: k.SubnetID, PrimaryIPv4: k.Primary, Groups: k.Groups,
	}
	e.Addresses, e.Prefixes, e.IPv6, e.IPv6Prefixes = split(k.held)
	if p.cfg.primaryServes() && !e.Primary && e.Serves && k.Primary.IsValid() {
		e.Addresses = append([]netip.Addr{k.Primary}, e.Addresses...)
	}
	subnet := p.cfg.Shared.Catalog.Subnets.BlocksWith(k.SubnetID, k.Primary)
	e.Subnet, e.SubnetIPv6 = subnet.CIDR, subnet.IPv6
	return e
}
