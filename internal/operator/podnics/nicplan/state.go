package nicplan

import (
	"slices"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// Want is what is asked for.
type Want struct {
	Device  string // by which its port is known (vpcport.Device)
	Name    string // for people
	Network string // the ID of the network; empty while it is not known
	// Given is the ID of a port that is there already; empty: one is made.
	Given string
	// Tag is one that a given port must have before it is taken.
	Tag       string
	Addresses []vpcport.NewAddress
	Subnets   []string // that it is to be in one of, without Addresses; nil: any
	Groups    []string // nil: any
	MAC       mac.Addr // that a new port is to have; nil: any
	// Idempotent tells that a port which was asked for, and does not show, may be asked for
	// again (vpcport.Traits).
	Idempotent bool
	// Host is where it is to be bound; empty: nowhere, or not known yet.
	Host string
	// Cluster is the cluster's name, by which ports are known that were made before any NIC needed
	// them, one of which may have been taken for this one.
	Cluster string
	// Yields tells that such a port, which is recorded of this NIC, is recorded of another too, to which
	// it is left.
	Yields bool
	// Over tells that nobody needs it any more.
	Over bool
	// Held tells that a node may still have it plugged: it is neither let go nor bound
	// to another host.
	Held bool
	// Leaving tells that it is to be on another node than the one that Held is about, or
	// on none.
	Leaving bool
}

// Have is what is recorded and what was seen.
type Have struct {
	// Kept tells that the PodNIC has the finalizer, by which it cannot go before its
	// port. Recorded in the PodNIC.
	Kept bool
	// Recorded is the ID of its port; empty: none. Recorded in the PodNIC.
	Recorded string
	// Unclear tells that a port may have been asked for, by this process or one before
	// it, and may yet be made.
	Unclear bool
	// Looked tells that Port, Extra and Stranger are what the provider has, as of the
	// last call or later.
	Looked bool
	Port   *vpcport.Port // nil: there is none
	Extra  []string      // IDs of further ports that were made for it
	// Stranger tells that another port of the network has Want.MAC.
	Stranger bool
	// Collided tells that the provider refused Want.MAC.
	Collided bool
}

// Took is what is known once a port that was made before any NIC needed it was taken for this
// one, which had none.
func (h Have) Took(p vpcport.Port) Have {
	h.Port, h.Looked, h.Unclear = &p, true, false
	return h
}

// Restored is what is known at first of a NIC of which this is recorded.
func Restored(kept bool, recorded string) Have {
	return Have{Kept: kept, Recorded: recorded, Unclear: kept && recorded == ""}
}

// mine tells whether a port carries the NIC's mark.
func (w Want) mine(p *vpcport.Port) bool { return p.Device == w.Device && p.Owner == vpcport.Owner }

// warm tells whether a port was made before any NIC needed it, and does not carry the mark of
// one yet.
func (w Want) warm(p *vpcport.Port) bool {
	_, ok := p.WarmVPC(w.Cluster)
	return ok && w.Given == "" && !w.Yields
}

// Has tells whether a port is the NIC's: by its mark, or as it was taken for it of those that were
// made before.
func (w Want) Has(p *vpcport.Port) bool { return p.Device == w.Device || w.warm(p) }

// stripped tells whether a port, which is not marked as the NIC's, was made for it and has lost
// the mark to somebody who gave it to nobody else: it is the one that is recorded, or has the owner
// that Berth gives and the MAC address that only this NIC's port has.
func (w Want) stripped(p *vpcport.Port, recorded string) bool {
	if w.Given != "" || p.Device != "" {
		return false
	}
	switch p.Owner {
	case vpcport.Owner:
		return p.ID == recorded || w.sameMAC(p)
	case "":
		return p.ID == recorded
	}
	return false
}

// lost tells whether the NIC's port is somebody else's by now, or its user's again: it is not
// marked as the NIC's, nor one from which only the mark was taken.
func (w Want) lost(p *vpcport.Port) bool {
	switch {
	case p.Device != "":
		return !w.mine(p) && !w.warm(p)
	case p.Owner == "":
		return w.Given != ""
	}
	return p.Owner != vpcport.Owner
}

func (w Want) sameMAC(p *vpcport.Port) bool {
	return w.MAC != nil && p.NetworkID == w.Network && p.MAC.String() == w.MAC.String()
}

// regrouped tells whether a port has other groups than it is to have.
func (w Want) regrouped(p *vpcport.Port) bool {
	if w.Groups == nil || w.Given != "" {
		return false
	}
	want, have := slices.Sorted(slices.Values(w.Groups)), slices.Sorted(slices.Values(p.Groups))
	return !slices.Equal(want, have)
}

// New is what is asked of the provider for a new port.
func (w Want) New() vpcport.NewPort {
	return vpcport.NewPort{
		NetworkID: w.Network, Name: w.Name, Device: w.Device, MAC: w.MAC, Addresses: w.Addresses, Subnets: w.Subnets, Groups: w.Groups, Host: w.Host,
	}
}
