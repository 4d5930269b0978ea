package vpc

import (
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// store holds all resources with their histories, and the lag of readers.
type store struct {
	world *world
	seed  byte // of MAC addresses

	// Guarded by world.mu.
	vpcs      table[VPC]
	subnets   table[Subnet]
	groups    table[SecurityGroup]
	routes    table[RouteTable]
	instances table[Instance]
	enis      table[ENI]
	macs      uint32        // number of MAC addresses issued
	lag       time.Duration // of describe calls
	imdsLag   time.Duration // of the metadata service
	lagWrites bool          // writes lag like describe calls
}

// newMAC returns a locally administered MAC address that is unique in this cloud.
func (st *store) newMAC() []byte {
	st.macs++
	n := st.macs
	return []byte{0x02, st.seed, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

// keep returns how long old versions are kept. The caller must hold the lock.
func (st *store) keep() time.Duration { return max(st.lag, st.imdsLag) }

func (st *store) putENI(e *ENI) { st.enis.put(e.ID, e, st.world.clock.Now(), st.keep()) }

func (st *store) putInstance(i *Instance) { st.instances.put(i.ID, i, st.world.clock.Now(), st.keep()) }

// holder returns the instance that an ENI is attached to, for a branch through its trunk, or nil if the ENI
// is available. The caller must hold the lock.
func (st *store) holder(e *ENI) *Instance {
	if e.Trunk != nil {
		e = st.enis.get(e.Trunk.TrunkID)
	}
	if e.Attachment == nil {
		return nil
	}
	return st.instances.get(e.Attachment.InstanceID)
}

// room checks that an instance's type supports the addresses of an ENI. An IPv6-only subnet only has
// instances built on Nitro (Amazon VPC User Guide, "Subnet types").
func (st *store) room(i *Instance, e *ENI) error {
	l, _ := limits.Lookup(i.Type)
	if !l.Prefixes && st.subnets.get(e.SubnetID).IPv6Native() { // only these support prefixes, too
		return Errorf("UnsupportedOperation", "The instance type %s does not support IPv6-only subnets: they are for Nitro-based instances.", i.Type)
	}
	if !l.Prefixes && len(e.Prefixes)+len(e.IPv6Prefixes) > 0 {
		return prefixesUnsupported(i.Type)
	}
	if e.slots4() > l.IPv4PerENI || e.slots6() > l.IPv6PerENI {
		return tooManyAddresses()
	}
	return nil
}

// subnetNamed finds a subnet by name or ID, or returns nil. The caller must hold the lock.
func (st *store) subnetNamed(name string) *Subnet {
	for _, s := range st.subnets.all() {
		if s.Name == name || s.ID == name {
			return s
		}
	}
	return nil
}

// groupsNamed returns the IDs of a VPC's groups by names or IDs, or the default group if none are given. The
// caller must hold the lock.
func (st *store) groupsNamed(vpcID string, names []string) []string {
	if len(names) == 0 {
		names = []string{"default"}
	}
	var ids []string
	for _, n := range names {
		for _, g := range st.groups.all() {
			if g.VPCID == vpcID && (g.Name == n || g.ID == n) {
				ids = append(ids, g.ID)
			}
		}
	}
	return ids
}

// checkGroups returns the security groups of an ENI for the requested ones. The caller must hold the lock.
func (st *store) checkGroups(vpcID string, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return st.groupsNamed(vpcID, nil), nil
	}
	var missing, out []string
	for _, id := range ids {
		g := st.groups.get(id)
		if g == nil {
			missing = append(missing, id)
			continue
		}
		if g.VPCID != vpcID {
			return nil, Errorf("InvalidParameter", "Security group %s and the subnet belong to different networks.", id)
		}
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	if len(missing) > 0 {
		return nil, Errorf(unknownGroup, "The securityGroup ID '%s' does not exist", strings.Join(missing, ", "))
	}
	if len(out) > maxGroups {
		return nil, Errorf("SecurityGroupsPerInterfaceLimitExceeded", "The maximum number of security groups per interface is %d.", maxGroups)
	}
	return out, nil
}

// findENI returns the ENI that a write call names. The caller must hold the lock.
func (st *store) findENI(id string) (*ENI, error) {
	e := st.enis.get(id)
	if e == nil || st.tooFresh(st.enis.asOf(id, st.world.clock.Now().Add(-st.lag)) == nil) {
		return nil, NotFound("eni", id)
	}
	return e, nil
}

// findInstance returns the instance that a write call names. The caller must hold the lock.
func (st *store) findInstance(id string) (*Instance, error) {
	i := st.instances.get(id)
	if i == nil || st.tooFresh(st.instances.asOf(id, st.world.clock.Now().Add(-st.lag)) == nil) {
		return nil, NotFound("i", id)
	}
	return i, nil
}

// tooFresh reports whether write calls must not see a resource because describe calls do not return it yet.
func (st *store) tooFresh(unseen bool) bool { return st.lagWrites && unseen }

// place is the VPC of a resource and the subnet of an ENI.
func (st *store) place(id string) (vpc, subnet string) {
	if e := st.enis.get(id); e != nil {
		return e.VPCID, e.SubnetID
	}
	if s := st.subnets.get(id); s != nil {
		return s.VPCID, ""
	}
	if g := st.groups.get(id); g != nil {
		return g.VPCID, ""
	}
	return "", ""
}

// tagged finds a resource by ID, and returns its tags and a function that replaces them. The caller must
// hold the lock.
func (st *store) tagged(id string) (Tags, func(Tags), error) {
	now, keep := st.world.clock.Now(), st.keep()
	kind, _, _ := strings.Cut(id, "-")
	switch kind {
	case "eni":
		if e, err := st.findENI(id); err == nil {
			return e.Tags, func(t Tags) { n := e.Clone(); n.Tags = t; st.putENI(&n) }, nil
		}
	case "i":
		if i, err := st.findInstance(id); err == nil {
			return i.Tags, func(t Tags) { n := *i; n.Tags = t; st.putInstance(&n) }, nil
		}
	case "subnet":
		if s := st.subnets.get(id); s != nil {
			return s.Tags, func(t Tags) { n := *s; n.Tags = t; st.subnets.put(id, &n, now, keep) }, nil
		}
	case "vpc":
		if v := st.vpcs.get(id); v != nil {
			return v.Tags, func(t Tags) { n := *v; n.Tags = t; st.vpcs.put(id, &n, now, keep) }, nil
		}
	case "sg":
		if g := st.groups.get(id); g != nil {
			return g.Tags, func(t Tags) { n := *g; n.Tags = t; st.groups.put(id, &n, now, keep) }, nil
		}
	case "rtb":
		if r := st.routes.get(id); r != nil {
			return r.Tags, func(t Tags) { n := *r; n.Tags = t; st.routes.put(id, &n, now, keep) }, nil
		}
	}
	if _, ok := idKinds[kind]; !ok {
		return nil, nil, Errorf("InvalidID", "The ID '%s' is not valid", id)
	}
	return nil, nil, NotFound(kind, id)
}
