package eni

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/statefile"
)

// Inventory is the confirmed state of a node: the ENIs whose addresses serve pods, or could. It is published after
// every change, and stored in a file so that a node can work while the cloud is unreachable.
type Inventory struct {
	InstanceID   string       `json:"instanceID"`
	InstanceType string       `json:"instanceType"`
	Families     ipfamily.Set `json:"families,omitempty"` // address families of new pods
	Limits       cloud.Limits `json:"limits"`
	ENIs         []ENI        `json:"enis"` // by device index
	// Releasing lists addresses and prefixes whose release from the ENI has recently been requested, or is about
	// to be. No pod may get them, even if a listing still contains them.
	Releasing []Release `json:"releasing,omitempty"`
	// Leaving lists ENIs that are being detached; they are not in ENIs.
	Leaving []Leave `json:"leaving,omitempty"`
	// Usable means that an address has been assignable on this instance at least once.
	Usable bool      `json:"usable,omitempty"`
	At     time.Time `json:"at"` // time of the last reply that added to it; later listings may still lack the addition
}

// ENI is an attached ENI of Berth's, with the data that the data path needs.
type ENI struct {
	ID          string         `json:"id"`
	MAC         mac.Addr       `json:"mac"`
	DeviceIndex int            `json:"deviceIndex"`
	Primary     bool           `json:"primary,omitempty"`
	Serves      bool           `json:"serves"` // its addresses are for pods
	SubnetID    string         `json:"subnetID"`
	Subnet      netip.Prefix   `json:"subnet,omitzero"` // IPv4
	SubnetIPv6  []netip.Prefix `json:"subnetIPv6,omitempty"`
	PrimaryIPv4 netip.Addr     `json:"primaryIPv4,omitzero"` // none in an IPv6-only subnet
	Groups      []string       `json:"groups,omitempty"`     // security groups; nothing on the node depends on them
	// For pods. The primary ENI's single IPv6 addresses belong to the instance and are not included: EC2 does
	// not report which of them the operating system uses.
	Addresses    []netip.Addr   `json:"addresses,omitempty"`
	Prefixes     []netip.Prefix `json:"prefixes,omitempty"`
	IPv6         []netip.Addr   `json:"ipv6,omitempty"`
	IPv6Prefixes []netip.Prefix `json:"ipv6Prefixes,omitempty"`
}

// Equal reports whether two ENIs have the same data, except for their security groups.
func (e ENI) Equal(o ENI) bool {
	return e.ID == o.ID && slices.Equal(e.MAC, o.MAC) && e.DeviceIndex == o.DeviceIndex &&
		e.Primary == o.Primary && e.Serves == o.Serves && e.SubnetID == o.SubnetID && e.Subnet == o.Subnet && slices.Equal(e.SubnetIPv6, o.SubnetIPv6) &&
		e.PrimaryIPv4 == o.PrimaryIPv4 && slices.Equal(e.Addresses, o.Addresses) && slices.Equal(e.Prefixes, o.Prefixes) &&
		slices.Equal(e.IPv6, o.IPv6) && slices.Equal(e.IPv6Prefixes, o.IPv6Prefixes)
}

// Release is an address (as a /32 or /128) or prefix that is being released.
type Release struct {
	Prefix netip.Prefix `json:"prefix"`
	ENI    string       `json:"eni"`
	Since  time.Time    `json:"since"`
}

// Leave is an ENI that is being detached.
type Leave struct {
	ENI         string    `json:"eni"`
	DeviceIndex int       `json:"deviceIndex"`
	Since       time.Time `json:"since"`
	// Attached means that the detachment is about to be requested, or was requested and is not yet
	// confirmed.
	Attached bool `json:"attached,omitempty"`
}

// DecodeInventory decodes an inventory from JSON and rejects an invalid one: without an instance, with invalid
// addresses, or with an address on two ENIs.
func DecodeInventory(data []byte) (Inventory, error) {
	var inv Inventory
	if err := statefile.Decode(data, &inv); err != nil {
		return Inventory{}, fmt.Errorf("inventory: %w", err)
	}
	if err := inv.validate(); err != nil {
		return Inventory{}, fmt.Errorf("inventory: %w", err)
	}
	return inv, nil
}

func (inv Inventory) validate() error {
	if inv.InstanceID == "" {
		return errors.New("instanceID: required")
	}
	seen := map[netip.Prefix]string{}
	ids := map[string]bool{}
	for _, e := range inv.ENIs {
		if e.ID == "" || ids[e.ID] {
			return fmt.Errorf("enis: ID %q: want a unique, non-empty ID", e.ID)
		}
		ids[e.ID] = true
		if e.DeviceIndex < 0 {
			return fmt.Errorf("enis: %s: deviceIndex %d: want at least 0", e.ID, e.DeviceIndex)
		}
		for _, p := range e.held() {
			if !p.IsValid() || p != p.Masked() {
				return fmt.Errorf("enis: %s: %v is not an address or aligned prefix", e.ID, p)
			}
			if other, ok := seen[p]; ok {
				return fmt.Errorf("enis: %v is on both %s and %s", p, other, e.ID)
			}
			seen[p] = e.ID
		}
	}
	for _, l := range inv.Leaving {
		if l.ENI == "" || ids[l.ENI] {
			return fmt.Errorf("leaving: ENI %q: want a non-empty ID that is not among enis", l.ENI)
		}
		if l.DeviceIndex < 1 { // the primary ENI never leaves
			return fmt.Errorf("leaving: %s: deviceIndex %d: want at least 1", l.ENI, l.DeviceIndex)
		}
	}
	for _, r := range inv.Releasing {
		if !r.Prefix.IsValid() {
			return fmt.Errorf("releasing: %v is not an address or prefix", r.Prefix)
		}
	}
	return nil
}

// held returns all addresses and prefixes that the ENI holds for pods, as prefixes.
func (e ENI) held() []netip.Prefix {
	return held(e.Addresses, e.Prefixes, e.IPv6, e.IPv6Prefixes)
}
