package vpc

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// maxDetached is the maximum number of addresses of a family on an available ENI: as many as the largest
// instance type supports.
const maxDetached = 64

// AddressRequest is a request for addresses: specific ones, or a number of any.
type AddressRequest struct {
	IPv4            []netip.Addr
	IPv4Count       int
	Prefixes        []netip.Prefix
	PrefixCount     int
	IPv6            []netip.Addr
	IPv6Count       int
	IPv6Prefixes    []netip.Prefix
	IPv6PrefixCount int
	// NoIPv6 is an explicit count of 0: a new ENI gets no IPv6 address even if its subnet assigns one.
	NoIPv6 bool
	// AllowReassignment moves the requested secondary IPv4 addresses from other ENIs of the subnet.
	AllowReassignment bool
}

// Assigned is the addresses and prefixes that a call assigned.
type Assigned struct {
	IPv4         []netip.Addr
	Prefixes     []netip.Prefix
	IPv6         []netip.Addr
	IPv6Prefixes []netip.Prefix
}

// Assign assigns everything that is requested, or nothing.
func (es *ENIs) Assign(eniID string, r AddressRequest) (out Assigned, err error) {
	err = es.world.change(func() error {
		e, err := es.store.findENI(eniID)
		if err != nil {
			return err
		}
		n := e.Clone()
		a := es.pools.addresses(&n, es.store.holder(e))
		if err := a.assign(r); err != nil {
			a.rollback()
			return err
		}
		out = a.got
		es.store.putENI(&n)
		es.pools.countFree(e.SubnetID)
		for _, id := range slices.Sorted(maps.Keys(a.losers)) {
			es.store.putENI(a.losers[id])
			es.world.emit(AddressesChanged, es.store.holder(a.losers[id]), a.losers[id])
		}
		es.world.emit(AddressesChanged, es.store.holder(&n), &n)
		return nil
	})
	return out, err
}

// pools are the free addresses of every subnet. The world's lock guards them.
type pools struct {
	store *store
	v4    map[string]*space4 // by subnet ID; absent for IPv6-only subnets
	v6    map[string]*space6 // by subnet ID; only for subnets with IPv6
}

// addressing assigns addresses to a new ENI or to a copy of one, and can roll back.
type addressing struct {
	pools  *pools
	e      *ENI
	v4     *space4 // nil in an IPv6-only subnet
	v6     *space6 // nil without IPv6
	limits limits.Limits
	itype  string
	got    Assigned
	losers map[string]*ENI // ENIs that lost addresses to this one
	undo   []func()
}

// addresses prepares to assign addresses to e, which is attached to i or available. The caller must hold
// the lock.
func (ps *pools) addresses(e *ENI, i *Instance) *addressing {
	a := &addressing{
		pools: ps, e: e, v4: ps.v4[e.SubnetID], v6: ps.v6[e.SubnetID], losers: map[string]*ENI{},
		limits: limits.Limits{IPv4PerENI: maxDetached, IPv6PerENI: maxDetached, Prefixes: true},
	}
	if i != nil {
		a.limits, _ = limits.Lookup(i.Type)
		a.itype = i.Type
	}
	return a
}

func (a *addressing) rollback() {
	for _, f := range slices.Backward(a.undo) {
		f()
	}
	a.undo = nil
}

// create assigns the primary address and the requested addresses of a new ENI.
func (a *addressing) create(primary netip.Addr, r AddressRequest) error {
	if err := a.createAll(primary, r); err != nil {
		a.rollback()
		return err
	}
	return nil
}

func (a *addressing) createAll(primary netip.Addr, r AddressRequest) error {
	if slices.Contains(r.IPv4, primary) {
		return invalid("Address %s is given twice.", primary)
	}
	if a.e.Type == efaOnly {
		if primary.IsValid() || !reflect.ValueOf(r).IsZero() {
			return badCombination("IP addresses cannot be assigned to a network interface of type %s", efaOnly)
		}
		return nil
	}
	if err := a.takePrimary(primary); err != nil {
		return err
	}
	return a.assign(r)
}

// takePrimary assigns the requested primary address, or any free one. An IPv6-only subnet has none.
func (a *addressing) takePrimary(primary netip.Addr) error {
	switch {
	case a.v4 == nil && primary.IsValid():
		return noIPv4()
	case a.v4 == nil:
		return nil
	case !primary.IsValid():
		p, ok := a.v4.pick(a.pools.store.world.rng)
		if !ok {
			return subnetFull()
		}
		primary = p
	default:
		if err := a.usable4(primary); err != nil {
			return err
		}
		if a.v4.taken(primary) {
			return Errorf("InvalidIPAddress.InUse", "Address %s is in use.", primary)
		}
	}
	a.take4(primary)
	a.e.Primary = primary
	return nil
}

// noIPv4 is the error for IPv4 in an IPv6-only subnet. It is not documented; the code is EC2's for other
// invalid combinations of parameters.
func noIPv4() *Error {
	return badCombination("You cannot specify IPv4 addresses or prefixes in an IPv6-only subnet")
}

func (a *addressing) assign(r AddressRequest) error {
	if a.e.Type == efaOnly {
		return Errorf("UnsupportedOperation", "Network interfaces of type %s do not support IP addresses.", efaOnly)
	}
	if err := errors.Join(twice(r.IPv4), twice(r.Prefixes), twice(r.IPv6), twice(r.IPv6Prefixes)); err != nil {
		return err
	}
	if err := a.fits(r); err != nil {
		return err
	}
	for _, step := range []func(AddressRequest) error{a.given4, a.prefixes4, a.chosen4, a.given6, a.prefixes6, a.chosen6} {
		if err := step(r); err != nil {
			return err
		}
	}
	return nil
}

// twice rejects a request that names the same address or prefix twice.
func twice[T comparable](list []T) error {
	for i, v := range list {
		if slices.Contains(list[:i], v) {
			return invalid("Address %v is given twice.", v)
		}
	}
	return nil
}

// fits checks the limits of the ENI before the space of the subnet.
func (a *addressing) fits(r AddressRequest) error {
	counts := []int{r.IPv4Count, r.PrefixCount, r.IPv6Count, r.IPv6PrefixCount}
	if slices.Min(counts) < 0 {
		return invalid("A count of addresses is below zero.")
	}
	// Check each count before the sum, which may overflow.
	if slices.Max(counts) > max(a.limits.IPv4PerENI, a.limits.IPv6PerENI) {
		return tooManyAddresses()
	}
	prefixes := len(r.Prefixes) + r.PrefixCount + len(r.IPv6Prefixes) + r.IPv6PrefixCount
	if prefixes > 0 && !a.limits.Prefixes {
		return prefixesUnsupported(a.itype)
	}
	fresh := 0
	for _, x := range r.IPv4 {
		if !slices.Contains(a.e.Secondary, x) {
			fresh++
		}
	}
	want4 := fresh + r.IPv4Count + len(r.Prefixes) + r.PrefixCount
	if want4 > 0 && a.v4 == nil {
		return noIPv4()
	}
	want6 := len(r.IPv6) + r.IPv6Count + len(r.IPv6Prefixes) + r.IPv6PrefixCount
	if want6 > 0 && a.v6 == nil {
		return invalid("Subnet does not contain any IPv6 CIDR block ranges")
	}
	if want4 > 0 && a.e.slots4()+want4 > a.limits.IPv4PerENI || want6 > 0 && a.e.slots6()+want6 > a.limits.IPv6PerENI {
		return tooManyAddresses()
	}
	return nil
}

func (a *addressing) usable4(x netip.Addr) error {
	if !a.v4.cidr.Contains(x) {
		return invalid("Address does not fall within the subnet's address range")
	}
	if a.v4.reserved(x) {
		return invalid("Address %s is in subnet's reserved address range", x)
	}
	return nil
}

func (a *addressing) take4(x netip.Addr) {
	a.v4.take(x)
	a.undo = append(a.undo, func() { a.v4.release(x) })
}

func (a *addressing) given4(r AddressRequest) error {
	var refused []string
	for _, x := range r.IPv4 {
		if err := a.usable4(x); err != nil {
			return err
		}
		if slices.Contains(a.e.Secondary, x) {
			a.got.IPv4 = append(a.got.IPv4, x)
			continue
		}
		if a.v4.taken(x) {
			if !r.AllowReassignment || !a.takeOver(x) {
				refused = append(refused, x.String())
				continue
			}
		} else {
			a.take4(x)
		}
		a.add4(x)
	}
	if len(refused) > 0 {
		return invalid("[%s] assigned, but move is not allowed.", strings.Join(refused, ", "))
	}
	return nil
}

func (a *addressing) add4(x netip.Addr) {
	a.e.Secondary = append(a.e.Secondary, x)
	a.got.IPv4 = append(a.got.IPv4, x)
}

// takeOver removes a secondary address from another ENI, and reports whether it did: primary addresses and
// those of prefixes cannot move.
func (a *addressing) takeOver(x netip.Addr) bool {
	for _, other := range a.pools.store.enis.all() {
		if other.SubnetID != a.e.SubnetID || other.ID == a.e.ID || !slices.Contains(other.Secondary, x) {
			continue
		}
		n := a.losers[other.ID]
		if n == nil {
			c := other.Clone()
			n = &c
			a.losers[other.ID] = n
		}
		n.Secondary = slices.DeleteFunc(n.Secondary, func(y netip.Addr) bool { return y == x })
		return true
	}
	return false
}

func (a *addressing) chosen4(r AddressRequest) error {
	if r.IPv4Count > 0 && r.IPv4Count > a.v4.free {
		return subnetFull()
	}
	for range r.IPv4Count {
		x, ok := a.v4.pick(a.pools.store.world.rng)
		if !ok {
			return subnetFull()
		}
		a.take4(x)
		a.add4(x)
	}
	return nil
}

func (a *addressing) prefixes4(r AddressRequest) error {
	if len(r.Prefixes)+r.PrefixCount == 0 {
		return nil // the subnet may have no IPv4
	}
	return a.prefixes(a.v4, a.v4.cidr, prefixBits4, r.Prefixes, r.PrefixCount, func(p netip.Prefix) {
		a.e.Prefixes = append(a.e.Prefixes, p)
		a.got.Prefixes = append(a.got.Prefixes, p)
	})
}

// prefixSpace is the prefix space of either family.
type prefixSpace interface {
	prefixFree(p netip.Prefix) bool
	takePrefix(p netip.Prefix)
	releasePrefix(p netip.Prefix)
	pickPrefix(rng *rand.Rand) (netip.Prefix, bool)
}

// prefixes takes the given prefixes and count more from a subnet's space, and calls note for each.
func (a *addressing) prefixes(s prefixSpace, cidr netip.Prefix, bits int, given []netip.Prefix, count int, note func(netip.Prefix)) error {
	take := func(p netip.Prefix) {
		s.takePrefix(p)
		a.undo = append(a.undo, func() { s.releasePrefix(p) })
		note(p)
	}
	for _, p := range given {
		if p.Bits() != bits || p != p.Masked() || !cidr.Contains(p.Addr()) {
			return invalid("Prefix %s is not an aligned /%d within the subnet's address range", p, bits)
		}
		if !s.prefixFree(p) {
			return invalid("[%s] assigned, but move is not allowed.", p)
		}
		take(p)
	}
	for range count {
		p, ok := s.pickPrefix(a.pools.store.world.rng)
		if !ok {
			return Errorf("InsufficientCidrBlocks", "The specified subnet does not have enough free cidr blocks to satisfy the request.")
		}
		take(p)
	}
	return nil
}

func (a *addressing) given6(r AddressRequest) error {
	for _, x := range r.IPv6 {
		if !a.v6.cidr.Contains(x) {
			return invalid("Address does not fall within the subnet's address range")
		}
		if a.v6.reserved(x) {
			return invalid("Address %s is in subnet's reserved address range", x)
		}
		if a.v6.taken(x) {
			return Errorf("InvalidIPAddress.InUse", "Address %s is in use.", x)
		}
		a.take6(x)
	}
	return nil
}

func (a *addressing) take6(x netip.Addr) {
	a.v6.take(x)
	a.undo = append(a.undo, func() { a.v6.release(x) })
	a.e.IPv6 = append(a.e.IPv6, x)
	a.got.IPv6 = append(a.got.IPv6, x)
}

func (a *addressing) chosen6(r AddressRequest) error {
	for range r.IPv6Count {
		a.take6(a.v6.pick(a.pools.store.world.rng))
	}
	return nil
}

func (a *addressing) prefixes6(r AddressRequest) error {
	if len(r.IPv6Prefixes)+r.IPv6PrefixCount == 0 {
		return nil // the subnet may have no IPv6
	}
	return a.prefixes(a.v6, a.v6.cidr, prefixBits6, r.IPv6Prefixes, r.IPv6PrefixCount, func(p netip.Prefix) {
		a.e.IPv6Prefixes = append(a.e.IPv6Prefixes, p)
		a.got.IPv6Prefixes = append(a.got.IPv6Prefixes, p)
	})
}

func subnetFull() *Error {
	return Errorf("InsufficientFreeAddressesInSubnet", "The specified subnet does not have enough free addresses to satisfy the request.")
}

func tooManyAddresses() *Error {
	return Errorf("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
}

func prefixesUnsupported(instanceType string) *Error {
	return Errorf("UnsupportedOperation", "The instance type %s does not support prefixes on network interfaces.", instanceType)
}

// Unassign removes addresses and prefixes from an ENI, all or none.
func (es *ENIs) Unassign(eniID string, r Assigned) error {
	return es.world.change(func() error {
		e, err := es.store.findENI(eniID)
		if err != nil {
			return err
		}
		if slices.Contains(r.IPv4, e.Primary) {
			return invalid("The primary IP address '%s' of interface %s cannot be unassigned", e.Primary, eniID)
		}
		n := e.Clone()
		ok := remove(&n.Secondary, r.IPv4) && remove(&n.Prefixes, r.Prefixes) &&
			remove(&n.IPv6, r.IPv6) && remove(&n.IPv6Prefixes, r.IPv6Prefixes)
		if !ok {
			return invalid("Some of the specified addresses are not assigned to interface %s", eniID)
		}
		es.pools.release(e.SubnetID, r)
		es.store.putENI(&n)
		es.pools.countFree(e.SubnetID)
		es.world.emit(AddressesChanged, es.store.holder(&n), &n)
		return nil
	})
}

// remove removes the items of gone from list, and reports whether all were in it.
func remove[T comparable](list *[]T, gone []T) bool {
	for _, g := range gone {
		i := slices.Index(*list, g)
		if i < 0 {
			return false
		}
		*list = slices.Delete(*list, i, i+1)
	}
	return true
}

// release returns addresses and prefixes to a subnet. The caller must hold the lock.
func (ps *pools) release(subnetID string, r Assigned) {
	for _, a := range r.IPv4 {
		ps.v4[subnetID].release(a)
	}
	for _, p := range r.Prefixes {
		ps.v4[subnetID].releasePrefix(p)
	}
	for _, a := range r.IPv6 {
		ps.v6[subnetID].release(a)
	}
	for _, p := range r.IPv6Prefixes {
		ps.v6[subnetID].releasePrefix(p)
	}
}

// countFree records a subnet's free count after a change, unless it is IPv6-only. The caller must hold the
// lock.
func (ps *pools) countFree(subnetID string) {
	s := *ps.store.subnets.get(subnetID)
	if s.IPv6Native() {
		return
	}
	if free := ps.v4[subnetID].free; free != s.Free {
		s.Free = free
		ps.store.subnets.put(subnetID, &s, ps.store.world.clock.Now(), ps.store.keep())
	}
}

// String lists the addresses and prefixes, for logs.
func (a Assigned) String() string {
	return fmt.Sprint(a.IPv4, a.Prefixes, a.IPv6, a.IPv6Prefixes)
}
