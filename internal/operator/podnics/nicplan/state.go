package nicplan

import (
	"slices"

	"github.com/berthnet/berth/internal/vpcport"
)

// Desired is the desired state of a NIC.
type Desired struct {
	// Port is the request for a new port. Its NetworkID is empty while the network is unknown, and its Host while the port is not
	// to be bound or it is unknown where. The provider chooses a MAC address, groups or addresses that are not set.
	Port vpcport.NewPort
	// Given is the ID of a user's port that the NIC is to have; "" if it gets its own port.
	Given string
	// Tag is the tag that a user's port must have before it is taken (vpcport.NamespaceTag).
	Tag string
	// Cluster is the cluster's name, with which warm ports are marked (package warm).
	Cluster string
	// Idempotent says that the provider creates no second port for a repeated request (vpcport.Traits).
	Idempotent bool
	// Yields says that the warm port recorded for this NIC is also recorded for another one, which keeps it.
	Yields bool
	// Over says that the NIC is no longer needed.
	Over bool
	// Held says that a node may have the port plugged, so that it must be neither released nor bound to another host.
	Held bool
	// Leaving says that the NIC is to be on another node than the one in Held, or on none.
	Leaving bool
}

// Observed is what the PodNIC records about the port, and what the provider showed.
type Observed struct {
	// Kept says that the PodNIC has the finalizer that keeps it until its port is gone.
	Kept bool
	// Recorded is the ID of the port in the PodNIC's status, or "".
	Recorded string
	// Unclear says that this operator or an earlier one may have requested a port that may still appear.
	Unclear bool
	// Looked says that Port, Extra and Stranger are as shown by the provider in the last call or later.
	Looked bool
	Port   *vpcport.Port // nil if there is none
	Extra  []string      // IDs of additional ports created for the NIC
	// Stranger says that another port of the network has the MAC address that the NIC is to have.
	Stranger bool
	// Collided says that the provider rejected that MAC address.
	Collided bool
}

// Took returns what is known of a NIC without a port after it has taken a warm one.
func (o Observed) Took(p vpcport.Port) Observed {
	o.Port, o.Looked, o.Unclear = &p, true, false
	return o
}

// Restored returns what a new operator knows of a NIC with this record.
func Restored(kept bool, recorded string) Observed {
	return Observed{Kept: kept, Recorded: recorded, Unclear: kept && recorded == ""}
}

// marked reports whether a port has the NIC's mark, which is its device and owner.
func (d Desired) marked(p *vpcport.Port) bool {
	return p.Device == d.Port.Device && p.Owner == vpcport.Owner
}

// warm reports whether a port is a warm one without the mark of a NIC.
func (d Desired) warm(p *vpcport.Port) bool {
	_, ok := p.WarmVPC(d.Cluster)
	return ok && d.Given == "" && !d.Yields
}

// Has reports whether a port is the NIC's: by its device, or as a warm port that the NIC has taken.
func (d Desired) Has(p *vpcport.Port) bool { return p.Device == d.Port.Device || d.warm(p) }

// stripped reports whether a port without a device was created for the NIC, and somebody removed the mark: it is the recorded one,
// or it has Berth's owner and the MAC address that only this NIC's port has.
func (d Desired) stripped(p *vpcport.Port, recorded string) bool {
	if d.Given != "" || p.Device != "" {
		return false
	}
	switch p.Owner {
	case vpcport.Owner:
		return p.ID == recorded || d.sameMAC(p)
	case "":
		return p.ID == recorded
	}
	return false
}

// lost reports whether the NIC's port now belongs to somebody else or was returned to its user: it has another mark, or lacks
// more than just the mark.
func (d Desired) lost(p *vpcport.Port) bool {
	switch {
	case p.Device != "":
		return !d.marked(p) && !d.warm(p)
	case p.Owner == "":
		return d.Given != ""
	}
	return p.Owner != vpcport.Owner
}

func (d Desired) sameMAC(p *vpcport.Port) bool {
	return d.Port.MAC != nil && p.NetworkID == d.Port.NetworkID && p.MAC.String() == d.Port.MAC.String()
}

// regrouped reports whether a port's groups differ from the desired ones.
func (d Desired) regrouped(p *vpcport.Port) bool {
	if d.Port.Groups == nil || d.Given != "" {
		return false
	}
	want, have := slices.Sorted(slices.Values(d.Port.Groups)), slices.Sorted(slices.Values(p.Groups))
	return !slices.Equal(want, have)
}
