// Package nodenetwork reads what a NodeNetwork says of its instance: the ENIs, the
// addresses that pods may have, and those on their way back. The operator wrote
// it, but so may have a person: an entry that makes no sense is left out. Operator
// and daemon write their parts of the object by ApplyBody.
package nodenetwork

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/ipam"
)

// Reading is what an object says.
type Reading struct {
	Inventory   eni.Inventory // At and Releasing left open
	Available   map[netip.Prefix]bool
	Releasing   []netip.Prefix // of those available, Unassigning included
	Unassigning []netip.Prefix // of those available, what the cloud may have been asked to take
	Released    []netip.Prefix // of those available, as the daemon reported it
	Bad         []string       // entries that make no sense, and why
}

// Read turns an object into an inventory. An available address whose ENI is not
// in status yet waits for that; an entry that makes no sense is told of and
// left out, and spoils nothing else.
func Read(o *v1alpha1.NodeNetwork) Reading {
	r := Reading{Available: map[netip.Prefix]bool{}}
	r.Inventory = eni.Inventory{InstanceID: o.Spec.InstanceID, InstanceType: o.Spec.InstanceType}
	if l := o.Status.ENI.Limits; l != nil {
		r.Inventory.Limits = cloud.Limits{MaxENIs: int(l.ENIs), IPv4PerENI: int(l.AddressesPerENI), Prefixes: l.Prefixes}
	}
	r.readENIs(o)
	r.readAvailable(o)
	r.readUnassigning(o)
	r.Releasing = append(r.among("spec.ipam.releasing", o.Spec.IPAM.Releasing), r.Unassigning...)
	slices.SortFunc(r.Releasing, netip.Prefix.Compare)
	r.Releasing = slices.Compact(r.Releasing)
	r.Released = r.among("status.ipam.released", o.Status.IPAM.Released)
	return r
}

func (r *Reading) refuse(format string, args ...any) {
	r.Bad = append(r.Bad, fmt.Sprintf(format, args...))
}

func (r *Reading) readENIs(o *v1alpha1.NodeNetwork) {
	first := ipam.DefaultCilium().FirstInterfaceIndex
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
		r.Inventory.ENIs = append(r.Inventory.ENIs, e)
	}
	slices.SortFunc(r.Inventory.ENIs, func(x, y eni.ENI) int { return x.DeviceIndex - y.DeviceIndex })
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
func (r *Reading) readAvailable(o *v1alpha1.NodeNetwork) {
	index := map[string]int{}
	for i, e := range r.Inventory.ENIs {
		index[e.ID] = i
	}
	var prefixes []netip.Prefix
	for _, text := range slices.Sorted(maps.Keys(o.Spec.IPAM.Available)) {
		p, err := Parse(text)
		if err != nil {
			r.refuse("spec.ipam.available[%s]: %v", text, err)
			continue
		}
		i, known := index[o.Spec.IPAM.Available[text].Resource]
		if !known {
			continue
		}
		e := &r.Inventory.ENIs[i]
		switch {
		case e.Primary && p.Contains(e.PrimaryIPv4):
			r.refuse("spec.ipam.available[%s]: this is the node's own address", text)
			continue
		case e.Subnet.IsValid() && !(e.Subnet.Contains(p.Addr()) && p.Bits() >= e.Subnet.Bits()):
			r.refuse("spec.ipam.available[%s]: not in %v, the subnet of %s", text, e.Subnet, e.ID)
			continue
		case r.Available[p]:
			r.refuse("spec.ipam.available[%s]: listed twice", text)
			continue
		}
		r.Available[p], e.Serves = true, true
		if p.IsSingleIP() {
			e.Addresses = append(e.Addresses, p.Addr())
		} else {
			e.Prefixes, prefixes = append(e.Prefixes, p), append(prefixes, p)
		}
	}
	r.dropContained(prefixes)
	for i := range r.Inventory.ENIs {
		slices.SortFunc(r.Inventory.ENIs[i].Addresses, netip.Addr.Compare)
		slices.SortFunc(r.Inventory.ENIs[i].Prefixes, netip.Prefix.Compare)
	}
}

// dropContained leaves out single addresses inside a prefix, whose they are.
func (r *Reading) dropContained(prefixes []netip.Prefix) {
	if len(prefixes) == 0 {
		return
	}
	for i := range r.Inventory.ENIs {
		e := &r.Inventory.ENIs[i]
		e.Addresses = slices.DeleteFunc(e.Addresses, func(a netip.Addr) bool {
			j := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
			if j >= 0 {
				r.refuse("spec.ipam.available[%v]: is in %v, which is available too", a, prefixes[j])
				delete(r.Available, cloud.HostPrefix(a))
			}
			return j >= 0
		})
	}
}

// readUnassigning reads the addresses and prefixes of spec.ipam.unassigning. The
// ENIs in it are the operator's to know: nothing of them is available.
func (r *Reading) readUnassigning(o *v1alpha1.NodeNetwork) {
	things := slices.DeleteFunc(slices.Clone(o.Spec.IPAM.Unassigning), func(text string) bool { return strings.HasPrefix(text, "eni-") })
	r.Unassigning = r.among("spec.ipam.unassigning", things)
}

// HasAvailable tells whether an object has an available address of an ENI.
func HasAvailable(o *v1alpha1.NodeNetwork, eniID string) bool {
	for _, at := range o.Spec.IPAM.Available {
		if at.Resource == eniID {
			return true
		}
	}
	return false
}

// Available are the available addresses and prefixes of an object, as far as they
// make sense, each with its ENI.
func Available(o *v1alpha1.NodeNetwork) iter.Seq2[netip.Prefix, string] {
	return func(yield func(netip.Prefix, string) bool) {
		for text, at := range o.Spec.IPAM.Available {
			if p, err := Parse(text); err == nil && !yield(p, at.Resource) {
				return
			}
		}
	}
}

// among reads a list, as far as it is of available things.
func (r *Reading) among(field string, list []string) (out []netip.Prefix) {
	for _, text := range list {
		p, err := Parse(text)
		if err != nil {
			r.refuse("%s: %q: %v", field, text, err)
		} else if r.Available[p] {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// Parse reads an IPv4 address, as a prefix of full length, or an aligned /28.
func Parse(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return cloud.HostPrefix(a), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || p != cloud.PrefixAround(p.Addr()) {
		return p, errors.New("expected an IPv4 address, or an aligned /28")
	}
	return p, nil
}

// Format is Parse's opposite.
func Format(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// InstanceOf is the EC2 instance that a Node's providerID (aws:///ZONE/INSTANCE)
// names; empty: it names none.
func InstanceOf(providerID string) string {
	if !strings.HasPrefix(providerID, "aws://") {
		return ""
	}
	return path.Base(providerID)
}

// Newer tells whether a is a later state of an object than b. Resource versions
// that do not compare are taken as they come.
func Newer(a, b *v1alpha1.NodeNetwork) bool {
	d, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && d > 0
}
