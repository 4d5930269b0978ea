package nicplan

import (
	"slices"

	"github.com/berthnet/berth/internal/vpcport"
)

// Desired is what a NIC is to have.
type Desired struct {
	// Port is what a new port is asked for with. Its NetworkID is empty while the network is not
	// known, and its Host while the port is to be bound nowhere, or nobody knows where. Without a MAC
	// address, groups or addresses the provider chooses them.
	Port vpcport.NewPort
	// Given is the ID of a user's port that the NIC is to have; empty: it gets a port of its own.
	Given string
	// Tag is what a user's port must carry before it is taken (vpcport.NamespaceTag).
	Tag string
	// Cluster is the cluster's name, which warm ports carry (package warm).
	Cluster string
	// Idempotent says that the provider creates no second port for a request that it has carried
	// out already (vpcport.Traits).
	Idempotent bool
	// Yields says that the warm port that is recorded of this NIC is recorded of another one too,
	// and stays with that one.
	Yields bool
	// Over says that the NIC is not needed any more.
	Over bool
	// Held says that a node may have the port plugged: it is neither released nor bound to another
	// host.
	Held bool
	// Leaving says that the NIC is to be on another node than the one that Held is about, or on none.
	Leaving bool
}

// Observed is what the PodNIC records about the port, and what the provider showed of it.
type Observed struct {
	// Kept says that the PodNIC has the finalizer that keeps it until its port is gone.
	Kept bool
	// Recorded is the ID of the port in the PodNIC's status; empty: none.
	Recorded string
	// Unclear says that this operator or one before it may have asked for a port that may still
	// appear.
	Unclear bool
	// Looked says that Port, Extra and Stranger are what the provider showed in the last call or
	// later.
	Looked bool
	Port   *vpcport.Port // nil: none
	Extra  []string      // IDs of further ports that were made for the NIC
	// Stranger says that another port of the network has the MAC address that the NIC is to have.
	Stranger bool
	// Collided says that the provider refused that MAC address.
	Collided bool
}

// Took is what is known of a NIC without a port once it has taken a warm one.
func (o Observed) Took(p vpcport.Port) Observed {
	o.Port, o.Looked, o.Unclear = &p, true, false
	return o
}

// Restored is what an operator knows at first of a NIC with this record.
func Restored(kept bool, recorded string) Observed {
	return Observed{Kept: kept, Recorded: recorded, Unclear: kept && recorded == ""}
}

// marked reports whether a port carries the NIC's mark, its device and owner.
func (d Desired) marked(p *vpcport.Port) bool {
	return p.Device == d.Port.Device && p.Owner == vpcport.Owner
}

// warm reports whether a port is a warm one that carries no NIC's mark yet.
func (d Desired) warm(p *vpcport.Port) bool {
	_, ok := p.WarmVPC(d.Cluster)
	return ok && d.Given == "" && !d.Yields
}

// Has reports whether a port is the NIC's: by its device, or as a warm port that it has taken.
func (d Desired) Has(p *vpcport.Port) bool { return p.Device == d.Port.Device || d.warm(p) }

// stripped reports whether a port without a device was made for the NIC, and somebody removed the
// mark: it is the recorded one, or has Berth's owner and the MAC address that only this NIC's port
// has.
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

// lost reports whether somebody else has the NIC's port by now, or its user has it back: it carries
// another mark, or none and more than the mark is missing.
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

// regrouped reports whether a port has other groups than it is to have.
func (d Desired) regrouped(p *vpcport.Port) bool {
	if d.Port.Groups == nil || d.Given != "" {
		return false
	}
	want, have := slices.Sorted(slices.Values(d.Port.Groups)), slices.Sorted(slices.Values(p.Groups))
	return !slices.Equal(want, have)
}
