package nodenetwork

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/ipam"
)

// parseThing reads what spec.ipam has: an IPv4 address, as a prefix of full
// length, or an aligned /28.
func parseThing(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return host(a), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || p != p.Masked() || weight(p) != ipam.PrefixAddresses {
		return netip.Prefix{}, fmt.Errorf("%q: expected an IPv4 address, or an aligned /28", text)
	}
	return p, nil
}

// formatThing is parseThing's opposite.
func formatThing(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// weight is how many addresses an IPv4 thing stands for.
func weight(p netip.Prefix) int { return 1 << (32 - p.Bits()) }

// parseThings reads a list as far as it makes sense.
func parseThings(list []string) map[netip.Prefix]bool {
	out := make(map[netip.Prefix]bool, len(list))
	for _, text := range list {
		if p, err := parseThing(text); err == nil {
			out[p] = true
		}
	}
	return out
}

// newer tells whether state a of an object is later than b.
func newer(a, b *v1alpha1.NodeNetwork) bool {
	d, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && d > 0
}

// seed is what the object says was published of its instance. Confirmed
// addresses on their way back may have been asked of the cloud by whoever wrote
// the object, so they are on their way back still; those not confirmed are not.
func seed(o *v1alpha1.NodeNetwork, now time.Time) eni.Inventory {
	inv := eni.Inventory{InstanceID: o.Spec.InstanceID, InstanceType: o.Spec.InstanceType, At: publishedAt(o)}
	if l := o.Status.ENI.Limits; l != nil {
		inv.Limits = cloud.Limits{MaxENIs: int(l.ENIs), IPv4PerENI: int(l.AddressesPerENI), Prefixes: l.Prefixes}
	}
	first := ipam.DefaultCilium().FirstInterfaceIndex
	if i := o.Spec.ENI.FirstInterfaceIndex; i != nil {
		first = int(*i)
	}
	index := map[string]int{}
	for _, id := range slices.Sorted(maps.Keys(o.Status.ENI.ENIs)) {
		if e, err := seedENI(id, o.Status.ENI.ENIs[id]); err == nil {
			e.Serves = e.DeviceIndex >= first
			index[id] = len(inv.ENIs)
			inv.ENIs = append(inv.ENIs, e)
		}
	}
	releasing, released := parseThings(o.Spec.IPAM.Releasing), parseThings(o.Status.IPAM.Released)
	for text, at := range o.Spec.IPAM.Available {
		p, err := parseThing(text)
		i, known := index[at.Resource]
		if err != nil || !known || inv.ENIs[i].Subnet.IsValid() && !inv.ENIs[i].Subnet.Contains(p.Addr()) {
			continue // left by a hand edit; the cloud knows better
		}
		e := &inv.ENIs[i]
		if p.IsSingleIP() {
			e.Addresses = append(e.Addresses, p.Addr())
		} else {
			e.Prefixes = append(e.Prefixes, p)
		}
		if releasing[p] && released[p] {
			inv.Releasing = append(inv.Releasing, eni.Release{Prefix: p, ENI: e.ID, Since: now})
		}
	}
	for i := range inv.ENIs {
		slices.SortFunc(inv.ENIs[i].Addresses, netip.Addr.Compare)
		slices.SortFunc(inv.ENIs[i].Prefixes, netip.Prefix.Compare)
	}
	slices.SortFunc(inv.ENIs, func(x, y eni.ENI) int {
		return cmp.Or(cmp.Compare(x.DeviceIndex, y.DeviceIndex), cmp.Compare(x.ID, y.ID))
	})
	slices.SortFunc(inv.Releasing, func(x, y eni.Release) int { return x.Prefix.Compare(y.Prefix) })
	return inv
}

func seedENI(id string, in v1alpha1.ENI) (eni.ENI, error) {
	e := eni.ENI{
		ID: id, DeviceIndex: int(in.DeviceIndex), Primary: in.DeviceIndex == 0,
		SubnetID: in.SubnetID, Groups: in.SecurityGroups,
	}
	if err := e.MAC.UnmarshalText([]byte(in.MAC)); err != nil {
		return e, err
	}
	if e.DeviceIndex < 0 {
		return e, fmt.Errorf("deviceIndex %d: expected a number from 0", e.DeviceIndex)
	}
	var err error
	if e.PrimaryIPv4, err = netip.ParseAddr(in.PrimaryIPv4); err != nil {
		return e, err
	}
	if in.SubnetCIDR != "" {
		if e.Subnet, err = netip.ParsePrefix(in.SubnetCIDR); err != nil {
			return e, err
		}
	}
	return e, nil
}
