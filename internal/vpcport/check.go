package vpcport

import (
	"fmt"
	"slices"
)

// Mismatch names the property in which a port differs from its request; empty: none.
func Mismatch(n NewPort, p Port) string {
	switch {
	case p.NetworkID != n.NetworkID:
		return "network"
	case p.Device != n.Device || p.Owner != Owner:
		return "device"
	case n.MAC != nil && p.MAC.String() != n.MAC.String():
		return "MAC address"
	case n.Groups != nil && !SameSet(n.Groups, p.Groups):
		return "set of security groups"
	case p.Host != n.Host:
		return "host"
	case !hasAddresses(n.Addresses, p.Addresses):
		return "address"
	}
	return ""
}

// Unmet describes the part of a change that a port does not have; empty: none.
func (c Change) Unmet(p Port) string {
	for _, f := range []struct {
		name string
		want *string
		got  string
	}{{"host", c.Host, p.Host}, {"device", c.Device, p.Device}, {"owner", c.Owner, p.Owner}} {
		if f.want != nil && *f.want != f.got {
			return fmt.Sprintf("port %s has the %s %q after a change to %q", p.ID, f.name, f.got, *f.want)
		}
	}
	if c.Groups != nil && !SameSet(c.Groups, p.Groups) {
		return fmt.Sprintf("port %s has the groups %q after a change to %q", p.ID, p.Groups, c.Groups)
	}
	return ""
}

// Empty reports whether a change changes nothing.
func (c Change) Empty() bool {
	return c.Host == nil && c.Device == nil && c.Owner == nil && c.Groups == nil
}

// hasAddresses reports whether each address that was asked for is there. A network whose
// IPv6 addresses derive from MAC addresses adds one that was not (SLAAC).
func hasAddresses(asked []NewAddress, got []FixedIP) bool {
	left := slices.Clone(got)
	for _, a := range asked {
		i := slices.IndexFunc(left, func(f FixedIP) bool {
			return (a.SubnetID == "" || a.SubnetID == f.SubnetID) && (!a.IP.IsValid() || a.IP == f.IP)
		})
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)
	}
	return true
}

// SameSet reports whether two lists have the same values.
func SameSet(a, b []string) bool {
	unique := func(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
	return slices.Equal(unique(a), unique(b))
}
