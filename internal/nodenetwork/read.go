// Package nodenetwork reads a NodeNetwork: the ENIs of its instance, the addresses for pods, and those
// that are being released. The operator writes it, but a person may edit it, so invalid entries are
// ignored. Operator and daemon write their parts of the object with ApplyBody. Settings reads the
// settings of the spec.
package nodenetwork

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Reading is the content of an object.
type Reading struct {
	Inventory   eni.Inventory // without At and Releasing
	Available   map[netip.Prefix]bool
	Releasing   []netip.Prefix // available ones, including Unassigning
	Unassigning []netip.Prefix // available ones that the cloud may have been asked to release
	Released    []netip.Prefix // available ones, as reported by the daemon
	Bad         []string       // invalid entries, and why
}

// Read turns an object into an inventory. An available address whose ENI is not in the status yet is
// ignored until it is. An invalid entry is reported in Bad and ignored, and does not affect others.
func Read(o *v1alpha1.NodeNetwork) Reading {
	r := Reading{Available: map[netip.Prefix]bool{}}
	r.Inventory = eni.Inventory{InstanceID: o.Spec.InstanceID, InstanceType: o.Spec.InstanceType}
	if l := o.Status.ENI.Limits; l != nil {
		r.Inventory.Limits = cloud.Limits{MaxENIs: int(l.ENIs), IPv4PerENI: int(l.AddressesPerENI), IPv6PerENI: int(l.IPv6AddressesPerENI), Prefixes: l.Prefixes}
	}
	var err error
	if r.Inventory.Families, err = Families(o); err != nil {
		r.refuse("%v", err)
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

// Families returns the IP families of the node's pods. The error names the field if it is invalid; the
// result is then IPv4.
func Families(o *v1alpha1.NodeNetwork) (ipfamily.Set, error) {
	s, err := ipfamily.Parse(o.EffectiveENI().IPFamilies)
	if err != nil {
		return ipfamily.OnlyIPv4, fmt.Errorf("spec.eni.ipFamilies: %w", err)
	}
	return s, nil
}

func (r *Reading) refuse(format string, args ...any) {
	r.Bad = append(r.Bad, fmt.Sprintf(format, args...))
}

func (r *Reading) readENIs(o *v1alpha1.NodeNetwork) {
	first := ipam.DefaultCilium().FirstInterfaceIndex
	if i := o.EffectiveENI().FirstInterfaceIndex; i != nil {
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
	native := in.PrimaryIPv4 == "" && in.SubnetCIDR == "" && len(in.SubnetIPv6CIDRs) > 0 // of an IPv6-only subnet
	if e.PrimaryIPv4, err = netip.ParseAddr(in.PrimaryIPv4); (err != nil || !e.PrimaryIPv4.Is4()) && !native {
		return e, fmt.Errorf("primaryIPv4: %q: expected an IPv4 address, or subnetIPv6CIDRs only", in.PrimaryIPv4)
	}
	if in.SubnetCIDR != "" {
		if e.Subnet, err = netip.ParsePrefix(in.SubnetCIDR); err != nil || !e.Subnet.Addr().Is4() || e.Subnet != e.Subnet.Masked() {
			return e, fmt.Errorf("subnetCIDR: %q: expected an IPv4 CIDR", in.SubnetCIDR)
		}
	}
	for _, text := range in.SubnetIPv6CIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil || !isIPv6(p.Addr()) || p != p.Masked() {
			return e, fmt.Errorf("subnetIPv6CIDRs: %q: expected an IPv6 CIDR", text)
		}
		e.SubnetIPv6 = append(e.SubnetIPv6, p)
	}
	return e, nil
}

// isIPv6 reports whether an address is an IPv6 address, and not an IPv4 address in IPv6 notation.
func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }

// blocksOf returns the known blocks of an ENI's subnet of the family of an address or prefix.
func blocksOf(e *eni.ENI, p netip.Prefix) []netip.Prefix {
	if ipfamily.Of(p.Addr()) == ipfamily.IPv6 {
		return e.SubnetIPv6
	}
	if e.Subnet.IsValid() {
		return []netip.Prefix{e.Subnet}
	}
	return nil
}

// whyNot returns why an address or prefix of an ENI cannot be for pods, or "". The node's own address is
// never for pods. EC2 does not report which IPv6 address of eth0 the system uses, so no single IPv6
// address of eth0 is.
func whyNot(e *eni.ENI, p netip.Prefix) string {
	if e.Primary && p.Contains(e.PrimaryIPv4) {
		return "this is the node's own address"
	}
	if e.Primary && p.IsSingleIP() && ipfamily.Of(p.Addr()) == ipfamily.IPv6 {
		return "single IPv6 addresses of eth0 are the node's own: expected a /80 prefix, or an address of another ENI"
	}
	if !e.PrimaryIPv4.IsValid() && ipfamily.Of(p.Addr()) == ipfamily.IPv4 {
		return fmt.Sprintf("%s has no IPv4 addresses: its subnet is IPv6-only", e.ID)
	}
	blocks := blocksOf(e, p)
	in := func(block netip.Prefix) bool { return block.Contains(p.Addr()) && p.Bits() >= block.Bits() }
	if len(blocks) == 0 || slices.ContainsFunc(blocks, in) {
		return ""
	}
	texts := make([]string, len(blocks))
	for i, block := range blocks {
		texts[i] = block.String()
	}
	return fmt.Sprintf("not in %s, the subnet of %s", strings.Join(texts, " or "), e.ID)
}

// readAvailable adds the available addresses and prefixes to their ENIs.
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
		if why := whyNot(e, p); why != "" {
			r.refuse("spec.ipam.available[%s]: %s", text, why)
			continue
		}
		r.Available[p], e.Serves = true, true
		if !p.IsSingleIP() {
			prefixes = append(prefixes, p)
		}
		put(e, p)
	}
	r.dropContained(prefixes)
	for i := range r.Inventory.ENIs {
		e := &r.Inventory.ENIs[i]
		for _, list := range [][]netip.Addr{e.Addresses, e.IPv6} {
			slices.SortFunc(list, netip.Addr.Compare)
		}
		for _, list := range [][]netip.Prefix{e.Prefixes, e.IPv6Prefixes} {
			slices.SortFunc(list, netip.Prefix.Compare)
		}
	}
}

// put adds an address, as a prefix of full length, or a prefix to its ENI.
func put(e *eni.ENI, p netip.Prefix) {
	addresses, prefixes := &e.Addresses, &e.Prefixes
	if ipfamily.Of(p.Addr()) == ipfamily.IPv6 {
		addresses, prefixes = &e.IPv6, &e.IPv6Prefixes
	}
	if p.IsSingleIP() {
		*addresses = append(*addresses, p.Addr())
	} else {
		*prefixes = append(*prefixes, p)
	}
}

// dropContained removes single addresses that are inside an available prefix.
func (r *Reading) dropContained(prefixes []netip.Prefix) {
	if len(prefixes) == 0 {
		return
	}
	contained := func(a netip.Addr) bool {
		j := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
		if j >= 0 {
			r.refuse("spec.ipam.available[%v]: is in %v, which is available too", a, prefixes[j])
			delete(r.Available, cloud.HostPrefix(a))
		}
		return j >= 0
	}
	for i := range r.Inventory.ENIs {
		e := &r.Inventory.ENIs[i]
		e.Addresses = slices.DeleteFunc(e.Addresses, contained)
		e.IPv6 = slices.DeleteFunc(e.IPv6, contained)
	}
}

// readUnassigning reads the addresses and prefixes of spec.ipam.unassigning. ENIs in it are for the
// operator only and do not count as available.
func (r *Reading) readUnassigning(o *v1alpha1.NodeNetwork) {
	things := slices.DeleteFunc(slices.Clone(o.Spec.IPAM.Unassigning), func(text string) bool { return strings.HasPrefix(text, "eni-") })
	r.Unassigning = r.among("spec.ipam.unassigning", things)
}

// HasAvailable reports whether an object has an available address of an ENI.
func HasAvailable(o *v1alpha1.NodeNetwork, eniID string) bool {
	for _, at := range o.Spec.IPAM.Available {
		if at.Resource == eniID {
			return true
		}
	}
	return false
}

// Available returns the valid available addresses and prefixes of an object, each with its ENI.
func Available(o *v1alpha1.NodeNetwork) iter.Seq2[netip.Prefix, string] {
	return func(yield func(netip.Prefix, string) bool) {
		for text, at := range o.Spec.IPAM.Available {
			if p, err := Parse(text); err == nil && !yield(p, at.Resource) {
				return
			}
		}
	}
}

// among reads the available entries of a list.
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

// Parse reads an IPv4 or IPv6 address, as a prefix of full length, or an aligned prefix of the size
// that EC2 delegates (cloud.PrefixAround). It accepts only the form that Format writes, so no address
// has two spellings.
func Parse(text string) (p netip.Prefix, err error) {
	if a, addrErr := netip.ParseAddr(text); addrErr == nil {
		p = cloud.HostPrefix(a)
	} else if p, err = netip.ParsePrefix(text); err != nil || p != cloud.PrefixAround(p.Addr()) {
		return p, errNoAddress
	}
	if p.Addr().Is4In6() {
		return p, errNoAddress
	}
	if string(cloud.AppendPrefix(make([]byte, 0, longest), p)) != text {
		return p, fmt.Errorf("expected it in its shortest form, %s", Format(p))
	}
	return p, nil
}

var errNoAddress = errors.New("expected an IPv4 or IPv6 address, or an aligned /28 of IPv4 or /80 of IPv6")

// longest is more than the length of any address or prefix as text.
const longest = 64

// ENIOf returns the ENI of a published address or prefix, or "" if it is not published.
func ENIOf(o *v1alpha1.NodeNetwork, p netip.Prefix) string {
	return o.Spec.IPAM.Available[string(cloud.AppendPrefix(make([]byte, 0, longest), p))].Resource
}

// Lists reports whether one of the lists in an object contains an address or prefix.
func Lists(list []string, p netip.Prefix) bool {
	return len(list) > 0 && slices.Contains(list, Format(p))
}

// Format writes an address or prefix in the form that Parse accepts.
func Format(p netip.Prefix) string { return cloud.FormatPrefix(p) }

// InstanceOf returns the EC2 instance in a Node's providerID (aws:///ZONE/INSTANCE), or "".
func InstanceOf(providerID string) string {
	if !strings.HasPrefix(providerID, "aws://") {
		return ""
	}
	return path.Base(providerID)
}

// Newer reports whether a is a later state of an object than b. If the resource versions cannot be
// compared, the result is false.
func Newer(a, b *v1alpha1.NodeNetwork) bool {
	d, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && d > 0
}

// ApplyBody returns a server-side apply of some fields of an object's spec and status; nil for neither.
// The request contains no other fields, so the writer owns no others. It has the resource version of o,
// so the API server answers with a conflict if anyone wrote to the object since.
func ApplyBody(o *v1alpha1.NodeNetwork, spec, status any) ([]byte, error) {
	type meta struct {
		Name            string    `json:"name"`
		UID             types.UID `json:"uid"`
		ResourceVersion string    `json:"resourceVersion"`
	}
	return json.Marshal(struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        meta `json:"metadata"`
		Spec            any  `json:"spec,omitempty"`
		Status          any  `json:"status,omitempty"`
	}{
		metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeNetwork"},
		meta{o.Name, o.UID, o.ResourceVersion}, spec, status,
	})
}
