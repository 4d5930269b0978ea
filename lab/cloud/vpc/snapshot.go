package vpc

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Snapshot is the state of the cloud at one moment, as copies. Each list is ordered by ID.
type Snapshot struct {
	Seq         uint64 // sequence number of the last event included
	Time        time.Time
	Region      string
	Account     string
	VPCs        []VPC
	Subnets     []Subnet
	Groups      []SecurityGroup
	RouteTables []RouteTable
	Instances   []Instance // terminated ones are included for an hour
	ENIs        []ENI
}

// Snapshot returns the current state, without lag.
func (c *Cloud) Snapshot() (b Snapshot) {
	c.world.read(func() {
		b = Snapshot{
			Seq: c.world.events.seq, Time: c.world.clock.Now(), Region: c.region, Account: c.account,
			VPCs: copies(c.store.vpcs.all(), VPC.Clone), Subnets: copies(c.store.subnets.all(), Subnet.Clone),
			Groups: copies(c.store.groups.all(), SecurityGroup.Clone), RouteTables: copies(c.store.routes.all(), RouteTable.Clone),
			Instances: copies(c.store.instances.all(), Instance.Clone), ENIs: copies(c.store.enis.all(), ENI.Clone),
		}
	})
	return b
}

// Seq returns the sequence number of the last event.
func (c *Cloud) Seq() (seq uint64) {
	c.world.read(func() { seq = c.world.events.seq })
	return seq
}

func copies[T any](in []*T, clone func(T) T) []T {
	out := make([]T, len(in))
	for i, v := range in {
		out[i] = clone(*v)
	}
	return out
}

// Instance finds an instance by ID or name, preferring one that is not terminated.
func (b Snapshot) Instance(idOrName string) (found Instance, ok bool) {
	for _, i := range b.Instances {
		if (i.ID == idOrName || i.Name == idOrName) && (!ok || found.State == Terminated) {
			found, ok = i, true
		}
	}
	return found, ok
}

// ENI finds an ENI by ID.
func (b Snapshot) ENI(id string) (ENI, bool) {
	return find(b.ENIs, func(e ENI) bool { return e.ID == id })
}

// Subnet finds a subnet by ID or name.
func (b Snapshot) Subnet(idOrName string) (Subnet, bool) {
	return find(b.Subnets, func(s Subnet) bool { return s.ID == idOrName || s.Name == idOrName })
}

// VPC finds a VPC by ID or name.
func (b Snapshot) VPC(idOrName string) (VPC, bool) {
	return find(b.VPCs, func(v VPC) bool { return v.ID == idOrName || v.Name == idOrName })
}

// Group finds a security group by ID, or by name if only one VPC has it.
func (b Snapshot) Group(idOrName string) (SecurityGroup, bool) {
	return find(b.Groups, func(g SecurityGroup) bool { return g.ID == idOrName || g.Name == idOrName })
}

func find[T any](list []T, is func(T) bool) (found T, ok bool) {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i], true
	}
	return found, false
}

// InstanceENIs returns the ENIs attached to an instance, the primary one first.
func (b Snapshot) InstanceENIs(instanceID string) []ENI {
	var out []ENI
	for _, e := range b.ENIs {
		if e.Attachment != nil && e.Attachment.InstanceID == instanceID {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(x, y ENI) int { return bySlot(x.Attachment, y.Attachment) })
	return out
}

// View is the state as a describe call sees it, which may lag. Its results are shared and must not be
// changed.
type View struct {
	c  *Cloud
	at time.Time
}

// Described returns the view of describe calls.
func (c *Cloud) Described() (v View) {
	c.world.read(func() { v = View{c, c.world.clock.Now().Add(-c.store.lag)} })
	return v
}

// Metadata returns the view of the metadata service.
func (c *Cloud) Metadata() (v View) {
	c.world.read(func() { v = View{c, c.world.clock.Now().Add(-c.store.imdsLag)} })
	return v
}

func seen[T any](v View, t *table[T]) (out []*T) {
	v.c.world.read(func() { out = t.allAsOf(v.at) })
	return out
}

// VPCs lists all VPCs, ordered by ID, like the methods for the other kinds.
func (v View) VPCs() []*VPC { return seen(v, &v.c.store.vpcs) }

// Subnets lists all subnets.
func (v View) Subnets() []*Subnet { return seen(v, &v.c.store.subnets) }

// Groups lists all security groups.
func (v View) Groups() []*SecurityGroup { return seen(v, &v.c.store.groups) }

// RouteTables lists all route tables.
func (v View) RouteTables() []*RouteTable { return seen(v, &v.c.store.routes) }

// Instances lists all instances.
func (v View) Instances() []*Instance { return seen(v, &v.c.store.instances) }

// ENIs lists all ENIs.
func (v View) ENIs() []*ENI { return seen(v, &v.c.store.enis) }

// ENI returns the ENI with an ID, or nil.
func (v View) ENI(id string) (out *ENI) {
	v.c.world.read(func() { out = v.c.store.enis.asOf(id, v.at) })
	return out
}

// Instance returns the instance with an ID, or nil.
func (v View) Instance(id string) (out *Instance) {
	v.c.world.read(func() { out = v.c.store.instances.asOf(id, v.at) })
	return out
}

// InstanceENIs returns the ENIs that the view shows as attached to an instance, the primary one first.
func (v View) InstanceENIs(instanceID string) (out []*ENI) {
	v.c.world.read(func() {
		for id := range v.c.attachments.ever[instanceID] {
			if e := v.c.store.enis.asOf(id, v.at); e != nil && e.Attachment != nil && e.Attachment.InstanceID == instanceID {
				out = append(out, e)
			}
		}
	})
	slices.SortFunc(out, func(x, y *ENI) int { return bySlot(x.Attachment, y.Attachment) })
	return out
}

// Self returns an instance with its ENIs as the instance itself sees them: like Instance and InstanceENIs,
// but an instance that is younger than the view's lag sees its first version. It returns nil for an
// unknown instance.
func (v View) Self(id string) (*Instance, []*ENI) {
	i, enis := v.Instance(id), v.InstanceENIs(id)
	v.c.world.read(func() {
		if i == nil {
			i = v.c.store.instances.first(id)
		}
		for _, e := range v.c.attachments.instanceENIs(id) {
			if e.Attachment.Primary() && (len(enis) == 0 || !enis[0].Attachment.Primary()) {
				enis = append([]*ENI{e}, enis...)
			}
		}
	})
	return i, enis
}

// bySlot orders attachments by network card and device index.
func bySlot(a, b *Attachment) int {
	return cmp.Or(cmp.Compare(a.NetworkCard, b.NetworkCard), cmp.Compare(a.DeviceIndex, b.DeviceIndex))
}

// OwnerOf finds the instance with the ENI that owns an address in the form "10.0.0.7:1234".
func (b Snapshot) OwnerOf(addrPort string) (instanceID string, ok bool) {
	ap, err := netip.ParseAddrPort(addrPort)
	if err != nil {
		return "", false
	}
	e, ok := find(b.ENIs, func(e ENI) bool { return e.Attachment != nil && e.Owns(ap.Addr().Unmap()) })
	if !ok {
		return "", false
	}
	return e.Attachment.InstanceID, true
}
