package vpc

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// Check verifies invariants of the state: each address has one owner, is in its ENI's subnet and not
// reserved; free counts are correct; attachments and associations respect the limits of the instance type.
func (b Snapshot) Check() error {
	k := checker{held: map[netip.Addr]string{}, held6: map[netip.Prefix]string{}, used: map[string]int{}, slots: map[string]string{}, cards: map[string]int{}, branches: map[string]int{}}
	for _, e := range b.ENIs {
		k.addresses(b, e)
		if e.Attachment != nil {
			k.attachment(b, e)
		}
		if e.Trunk != nil {
			k.association(b, e)
		}
	}
	for a, eni := range k.held {
		if other := k.held6[around(a)]; a.Is6() && other != "" {
			k.fail("address %v of %s is in a prefix of %s", a, eni, other)
		}
	}
	for _, i := range b.Instances {
		if n := k.branches[i.ID]; n > limits.Branches(i.Type) {
			k.fail("%s has %d branches, but a %s supports %d", i.ID, n, i.Type, limits.Branches(i.Type))
		}
	}
	for _, s := range b.Subnets {
		if s.IPv6Native() {
			if s.Free != 0 {
				k.fail("IPv6-only subnet %s counts %d free IPv4 addresses", s.ID, s.Free)
			}
			continue
		}
		if want := 1<<(32-s.CIDR.Bits()) - 5 - k.used[s.ID]; s.Free != want {
			k.fail("subnet %s counts %d free addresses, but has %d", s.ID, s.Free, want)
		}
	}
	return errors.Join(k.errs...)
}

type checker struct {
	errs  []error
	held  map[netip.Addr]string   // ENI by address, including all addresses of prefixes
	held6 map[netip.Prefix]string // ENI by IPv6 prefix
	used  map[string]int          // IPv4 addresses by subnet
	slots map[string]string       // ENI by instance, card and device index
	cards map[string]int          // ENIs by instance and card

	branches map[string]int // by instance
}

func (k *checker) fail(format string, args ...any) {
	k.errs = append(k.errs, fmt.Errorf(format, args...))
}

func (k *checker) addresses(b Snapshot, e ENI) {
	subnet, ok := b.Subnet(e.SubnetID)
	if !ok {
		k.fail("subnet of %s does not exist", e.ID)
		return
	}
	var s *space4
	if !subnet.IPv6Native() {
		s = newSpace4(subnet.CIDR)
	}
	hold := func(a netip.Addr) {
		if other, twice := k.held[a]; twice {
			k.fail("address %v belongs to both %s and %s", a, other, e.ID)
		}
		k.held[a] = e.ID
		if a.Is4() {
			k.used[e.SubnetID]++
			if s == nil || !subnet.CIDR.Contains(a) || s.reserved(a) {
				k.fail("address %v of %s is not an assignable address of %v", a, e.ID, subnet.CIDR)
			}
		} else if !subnet.IPv6.Contains(a) {
			k.fail("address %v of %s is not in %v", a, e.ID, subnet.IPv6)
		}
	}
	if e.Primary.IsValid() {
		hold(e.Primary)
	}
	for _, a := range append(append([]netip.Addr{}, e.Secondary...), e.IPv6...) {
		hold(a)
	}
	for _, p := range e.IPv6Prefixes {
		if other, twice := k.held6[p]; twice || !subnet.IPv6.Contains(p.Addr()) {
			k.fail("prefix %v of %s is not in %v, or also belongs to %s", p, e.ID, subnet.IPv6, other)
		}
		k.held6[p] = e.ID
	}
	for _, p := range e.Prefixes {
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			hold(a)
		}
	}
}

func (k *checker) attachment(b Snapshot, e ENI) {
	a := e.Attachment
	i, ok := b.Instance(a.InstanceID)
	if !ok || i.State == Terminated || i.Zone != e.Zone || i.VPCID != e.VPCID {
		k.fail("%s is attached to %s, which does not exist or is in another zone or VPC", e.ID, a.InstanceID)
		return
	}
	slot := fmt.Sprintf("%s/%d/%d", a.InstanceID, a.NetworkCard, a.DeviceIndex)
	if other, twice := k.slots[slot]; twice {
		k.fail("%s and %s share the slot %s (instance, network card, device index)", other, e.ID, slot)
	}
	k.slots[slot] = e.ID
	card := fmt.Sprintf("%s/%d", a.InstanceID, a.NetworkCard)
	k.cards[card]++
	l, _ := limits.Lookup(i.Type)
	if k.cards[card] > l.MaxENIs || e.slots4() > l.IPv4PerENI || e.slots6() > l.IPv6PerENI || !l.Prefixes && len(e.Prefixes)+len(e.IPv6Prefixes) > 0 {
		k.fail("%s exceeds the limits of a %s", e.ID, i.Type)
	}
}

func (k *checker) association(b Snapshot, e ENI) {
	t, ok := b.ENI(e.Trunk.TrunkID)
	if !ok || t.Type != trunk || t.Attachment == nil || t.Zone != e.Zone || t.VPCID != e.VPCID || e.Attachment != nil || e.Trunk.BranchID != e.ID {
		k.fail("%s is a branch of %s, which does not exist, is elsewhere or is not an attached trunk", e.ID, e.Trunk.TrunkID)
		return
	}
	k.branches[t.Attachment.InstanceID]++
	slot := fmt.Sprintf("%s/%d", t.ID, e.Trunk.VLAN)
	if other, twice := k.slots[slot]; twice {
		k.fail("%s and %s share VLAN %d of %s", other, e.ID, e.Trunk.VLAN, t.ID)
	}
	k.slots[slot] = e.ID
}
