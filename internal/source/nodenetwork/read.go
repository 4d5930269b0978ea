package nodenetwork

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/ipam"
)

// reading is what an object says, in the core's words.
type reading struct {
	inv       eni.Inventory // At and Releasing left open
	available map[netip.Prefix]bool
	releasing []netip.Prefix // of those available
	released  []netip.Prefix // of those available, as the daemon reported it
	bad       []string       // entries that make no sense, and why
}

// reported tells whether the operator has said anything of the instance: one
// that runs has its primary ENI at least.
func reported(o *v1alpha1.NodeNetwork) bool {
	return len(o.Status.ENI.ENIs) > 0 || len(o.Spec.IPAM.Available) > 0
}

// read turns an object into an inventory. An available address whose ENI is not
// in status yet waits for that; an entry that makes no sense is told of and
// left out, and spoils nothing else.
func read(o *v1alpha1.NodeNetwork) reading {
	r := reading{available: map[netip.Prefix]bool{}}
	r.inv = eni.Inventory{InstanceID: o.Spec.InstanceID, InstanceType: o.Spec.InstanceType}
	if l := o.Status.ENI.Limits; l != nil {
		r.inv.Limits = cloud.Limits{MaxENIs: int(l.ENIs), IPv4PerENI: int(l.AddressesPerENI), Prefixes: l.Prefixes}
	}
	r.readENIs(o)
	r.readAvailable(o)
	r.releasing = r.among("spec.ipam.releasing", o.Spec.IPAM.Releasing)
	r.released = r.among("status.ipam.released", o.Status.IPAM.Released)
	return r
}

func (r *reading) refuse(format string, args ...any) {
	r.bad = append(r.bad, fmt.Sprintf(format, args...))
}

func (r *reading) readENIs(o *v1alpha1.NodeNetwork) {
	first := 1
	if i := o.Spec.ENI.FirstInterfaceIndex; i != nil {
		first = int(*i)
	}
	at := map[int]string{}
	for _, id := range slices.Sorted(maps.Keys(o.Status.ENI.ENIs)) {
		e, err := readENI(id, o.Status.ENI.ENIs[id])
		if err != nil {
			r.refuse("status.eni.enis[%s].%v", id, err)
			continue
		}
		if other, taken := at[e.DeviceIndex]; taken {
			r.refuse("status.eni.enis[%s].deviceIndex: %d is that of %s", id, e.DeviceIndex, other)
			continue
		}
		at[e.DeviceIndex] = id
		e.Serves = e.DeviceIndex >= first
		r.inv.ENIs = append(r.inv.ENIs, e)
	}
	slices.SortFunc(r.inv.ENIs, func(x, y eni.ENI) int { return x.DeviceIndex - y.DeviceIndex })
}

func readENI(id string, in v1alpha1.ENI) (eni.ENI, error) {
	e := eni.ENI{
		ID: id, DeviceIndex: int(in.DeviceIndex), Primary: in.DeviceIndex == 0,
		SubnetID: in.SubnetID, Groups: in.SecurityGroups,
	}
	if err := e.MAC.UnmarshalText([]byte(in.MAC)); err != nil || len(e.MAC) != 6 {
		return e, fmt.Errorf("mac: %q: expected six octets", in.MAC)
	}
	if e.DeviceIndex < 0 {
		return e, fmt.Errorf("deviceIndex: %d: expected a number from 0", e.DeviceIndex)
	}
	var err error
	if e.PrimaryIPv4, err = netip.ParseAddr(in.PrimaryIPv4); err != nil || !e.PrimaryIPv4.Is4() {
		return e, fmt.Errorf("primaryIPv4: %q: expected an IPv4 address", in.PrimaryIPv4)
	}
	if in.SubnetCIDR == "" {
		return e, nil
	}
	if e.Subnet, err = netip.ParsePrefix(in.SubnetCIDR); err != nil || !e.Subnet.Addr().Is4() || e.Subnet != e.Subnet.Masked() {
		return e, fmt.Errorf("subnetCIDR: %q: expected an IPv4 CIDR", in.SubnetCIDR)
	}
	return e, nil
}

// readAvailable puts the available addresses and prefixes on their ENIs. The
// node's own address is never a pod's.
func (r *reading) readAvailable(o *v1alpha1.NodeNetwork) {
	index := map[string]int{}
	for i, e := range r.inv.ENIs {
		index[e.ID] = i
	}
	var prefixes []netip.Prefix
	for _, text := range slices.Sorted(maps.Keys(o.Spec.IPAM.Available)) {
		p, err := readThing(text)
		if err != nil {
			r.refuse("spec.ipam.available[%s]: %v", text, err)
			continue
		}
		i, known := index[o.Spec.IPAM.Available[text].Resource]
		if !known {
			continue
		}
		e := &r.inv.ENIs[i]
		switch {
		case e.Primary && p.Contains(e.PrimaryIPv4):
			r.refuse("spec.ipam.available[%s]: this is the node's own address", text)
			continue
		case e.Subnet.IsValid() && !(e.Subnet.Contains(p.Addr()) && p.Bits() >= e.Subnet.Bits()):
			r.refuse("spec.ipam.available[%s]: not in %v, the subnet of %s", text, e.Subnet, e.ID)
			continue
		case r.available[p]:
			r.refuse("spec.ipam.available[%s]: listed twice", text)
			continue
		}
		r.available[p], e.Serves = true, true
		if p.IsSingleIP() {
			e.Addresses = append(e.Addresses, p.Addr())
		} else {
			e.Prefixes, prefixes = append(e.Prefixes, p), append(prefixes, p)
		}
	}
	r.dropContained(prefixes)
	for i := range r.inv.ENIs {
		slices.SortFunc(r.inv.ENIs[i].Addresses, netip.Addr.Compare)
		slices.SortFunc(r.inv.ENIs[i].Prefixes, netip.Prefix.Compare)
	}
}

// dropContained leaves out single addresses inside a prefix, whose they are.
func (r *reading) dropContained(prefixes []netip.Prefix) {
	if len(prefixes) == 0 {
		return
	}
	for i := range r.inv.ENIs {
		e := &r.inv.ENIs[i]
		e.Addresses = slices.DeleteFunc(e.Addresses, func(a netip.Addr) bool {
			j := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
			if j >= 0 {
				r.refuse("spec.ipam.available[%v]: is in %v, which is available too", a, prefixes[j])
				delete(r.available, single(a))
			}
			return j >= 0
		})
	}
}

// among reads a list, as far as it is of available things.
func (r *reading) among(field string, list []string) (out []netip.Prefix) {
	for _, text := range list {
		p, err := readThing(text)
		if err != nil {
			r.refuse("%s: %q: %v", field, text, err)
		} else if r.available[p] {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// readThing reads an IPv4 address, as a prefix of full length, or a /28.
func readThing(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return single(a), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || p != p.Masked() || 1<<(32-p.Bits()) != ipam.PrefixAddresses {
		return p, fmt.Errorf("expected an IPv4 address, or an aligned /28")
	}
	return p, nil
}

// writeThing is readThing's opposite.
func writeThing(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// defaultPreAllocate is how many addresses are kept free when neither
// preAllocate nor a warm target is set (document 003).
var defaultPreAllocate = ipam.DefaultCilium().PreAllocate

// watermark is how many free addresses the object asks for.
func watermark(o *v1alpha1.NodeNetwork) int {
	e, perENI := &o.Spec.ENI, 1
	if l := o.Status.ENI.Limits; l != nil {
		perENI = max(1, int(l.AddressesPerENI)-1)
	}
	switch {
	case e.PreAllocate != nil:
		return int(*e.PreAllocate)
	case e.WarmIPTarget != nil:
		return int(*e.WarmIPTarget)
	case e.WarmPrefixTarget != nil && e.PrefixDelegation:
		return int(*e.WarmPrefixTarget) * ipam.PrefixAddresses
	case e.WarmENITarget != nil:
		return int(*e.WarmENITarget) * perENI
	}
	return defaultPreAllocate
}
