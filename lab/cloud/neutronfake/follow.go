package neutronfake

import (
	"cmp"
	"maps"
	"slices"
)

// Books are what there is at one moment, in the order of IDs.
type Books struct {
	Networks []Network
	Subnets  []Subnet
	Groups   []Group
	Ports    []Port
}

// Snapshot is what there is now.
func (c *Cloud) Snapshot() (b Books) {
	b.Ports = c.Ports()
	c.set(func() {
		b.Networks, b.Subnets, b.Groups = slices.Collect(maps.Values(c.networks)), slices.Collect(maps.Values(c.subnets)), slices.Collect(maps.Values(c.groups))
	})
	slices.SortFunc(b.Networks, func(x, y Network) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(b.Subnets, func(x, y Subnet) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(b.Groups, func(x, y Group) int { return cmp.Compare(x.ID, y.ID) })
	return b
}

// Changes is for who carries packets, of whom there is one: it has something to receive
// after networks, subnets, groups or ports were added, changed or removed since it was
// received from last.
func (c *Cloud) Changes() <-chan struct{} { return c.changed }

// tell tells of a change. c.mu is held.
func (c *Cloud) tell() {
	select {
	case c.changed <- struct{}{}:
	default: // it is told of already
	}
}
