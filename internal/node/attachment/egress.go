package attachment

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Egress is the egress state of a pod: a client of Egresses, a gateway, or both. It reserves nothing
// and ends with the pod. The record suffices to set the state up again, compare it and remove it, even
// after the API objects are deleted.
type Egress struct {
	// Egresses are the Egresses that the pod is a client of, by precedence. It is empty for a pod that is
	// not or no longer a client.
	Egresses []UsedEgress `json:"egresses,omitempty"`
	// LastID is the most recently assigned ID, or 0. IDs are assigned in turn, so that a released one is
	// not reused soon.
	LastID int `json:"lastID,omitempty"`
	// Forward: the pod is a gateway, and its namespace forwards packets.
	Forward bool `json:"forward,omitempty"`
	// State is the progress of a change. Only that of a ready record may differ from EgressSetUp.
	State EgressState `json:"state,omitempty"`
	// Former are the TunnelEnds of former states to which the kernel may still send while State is EgressChanging, without
	// those of this one.
	Former []netip.Addr `json:"former,omitempty"`
}

// EgressState is the progress of an egress change.
type EgressState string

// The states of an egress change.
const (
	// EgressSetUp means that the kernel matches the record.
	EgressSetUp EgressState = ""
	// EgressChanging means that the kernel may have the former state, the recorded one, or parts of both.
	EgressChanging EgressState = "changing"
)

// Settled returns the recorded form of e once it is set up, which is nil if e has no content.
func (e *Egress) Settled() *Egress {
	if e == nil || len(e.Egresses) == 0 && !e.Forward {
		return nil
	}
	settled := *e
	settled.State, settled.Former = EgressSetUp, nil
	return &settled
}

// Changing returns the recorded form of e while it replaces former. Both may be nil.
func (e *Egress) Changing(former *Egress) *Egress {
	changing := Egress{}
	if e != nil {
		changing = *e
	}
	changing.State, changing.Former = EgressChanging, nil
	for _, a := range former.TunnelEnds() {
		if !slices.Contains(changing.TunnelEnds(), a) {
			changing.Former = append(changing.Former, a)
		}
	}
	return &changing
}

// TunnelEnds returns the addresses that the pod's tunnels may lead to: of gateways, of Services, and Former. e may be nil.
func (e *Egress) TunnelEnds() (addrs []netip.Addr) {
	if e == nil {
		return nil
	}
	add := func(list []netip.Addr) {
		for _, a := range list {
			if !slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
	}
	for _, u := range e.Egresses {
		add(u.Service)
		for _, g := range u.Gateways {
			add(g.Addresses)
		}
	}
	add(e.Former)
	return addrs
}

// UsedEgress holds the settings of an Egress that a client needs.
type UsedEgress struct {
	Namespace    string         `json:"namespace"`
	Name         string         `json:"name"`
	UID          string         `json:"uid"` // a later object may have the same name
	Destinations []netip.Prefix `json:"destinations"`
	// Gateways are the gateways that tunnels may lead to and that replies may come from. Without any, the
	// destinations are unreachable.
	Gateways []EgressGateway `json:"gateways,omitempty"`
	// Service has an address of the Egress's Service for each family if tunnels lead to the Service instead
	// of gateways.
	Service []netip.Addr `json:"service,omitempty"`
	// SourcePortAuto selects a hash of each connection's addresses and ports as UDP source port of the
	// tunnel, instead of the port of the tunnels.
	SourcePortAuto bool `json:"sourcePortAuto,omitempty"`
	// OriginatingOnly routes replies to connections from outside as if the pod did not use the
	// Egress.
	OriginatingOnly bool `json:"originatingOnly,omitempty"`
}

// EgressGateway is a gateway of an Egress.
type EgressGateway struct {
	// ID identifies the gateway in the pod's kernel state: its next hop, table and part of the mark, 1 to
	// MaxEgressGateways. It is unique in the pod and never changes. It is 0 for an Egress whose tunnels lead
	// to its Service, where only replies come from the gateway.
	ID        int          `json:"id,omitempty"`
	UID       string       `json:"uid"`       // of the gateway's pod
	Addresses []netip.Addr `json:"addresses"` // one for each family
	Ending    bool         `json:"ending,omitempty"`
	// Chosen allows new connections to use the gateway.
	Chosen bool `json:"chosen,omitempty"`
}

// MaxEgressGateways bounds the gateways of all Egresses of a pod.
const MaxEgressGateways = 255

// Chained is the attachment's own interface if another network's plugin, which ran before Berth's,
// created it.
type Chained struct {
	Addresses []netip.Addr `json:"addresses"` // at least one; the other plugin releases them
}

// OwnAddrs returns the addresses of the attachment's own interface, named Key.IfName:
// those of the lease, of the NIC with that name, or of another network's plugin.
func (r Record) OwnAddrs() []netip.Addr {
	if first := r.First(); first != nil {
		return first.addrs()
	}
	if r.Chained != nil {
		return slices.Clone(r.Chained.Addresses)
	}
	return r.Lease.Addrs()
}

// OtherAddrs returns the addresses of the attachment's further interfaces.
func (r Record) OtherAddrs() (addrs []netip.Addr) {
	for _, n := range r.NICs {
		if n.IfName != r.Key.IfName {
			addrs = append(addrs, n.addrs()...)
		}
	}
	return addrs
}

func (n NIC) addrs() (addrs []netip.Addr) {
	for _, a := range n.Addresses {
		addrs = append(addrs, a.CIDR.Addr())
	}
	return addrs
}

// checkEgress validates egress and Chained.
func (r Record) checkEgress() error {
	if c := r.Chained; c != nil {
		if !r.Lease.Empty() || r.First() != nil {
			return fmt.Errorf("chained is set, and a lease or a NIC is named %s, too", r.Key.IfName)
		}
		if len(c.Addresses) == 0 || slices.ContainsFunc(c.Addresses, badAddr) {
			return fmt.Errorf("chained.addresses are %v, expected IP addresses without zones", c.Addresses)
		}
	}
	if r.Egress == nil {
		return nil
	}
	if err := r.Egress.validate(); err != nil {
		return fmt.Errorf("egress.%w", err)
	}
	return nil
}

// validate returns an error that begins with the path of the invalid field.
func (e Egress) validate() error {
	if e.State != EgressSetUp && e.State != EgressChanging {
		return fmt.Errorf("state is %q, expected changing or none", e.State)
	}
	if e.LastID < 0 || e.LastID > MaxEgressGateways {
		return fmt.Errorf("lastID is %d, expected 0 to %d", e.LastID, MaxEgressGateways)
	}
	if slices.ContainsFunc(e.Former, badAddr) {
		return fmt.Errorf("former is %v, expected IP addresses without zones", e.Former)
	}
	ids := map[int]bool{}
	for i, u := range e.Egresses {
		same := func(o UsedEgress) bool { return o.Namespace == u.Namespace && o.Name == u.Name }
		if slices.ContainsFunc(e.Egresses[:i], same) {
			return fmt.Errorf("egresses[%d]: %s/%s is listed twice", i, u.Namespace, u.Name)
		}
		if err := u.validate(ids); err != nil {
			return fmt.Errorf("egresses[%d]: %w", i, err)
		}
	}
	return nil
}

// validate validates an Egress of a pod. It rejects gateway IDs that are in ids, and adds its own.
func (u UsedEgress) validate(ids map[int]bool) error {
	switch {
	case u.Namespace == "" || u.Name == "" || u.UID == "":
		return errors.New("namespace, name or uid is empty")
	case len(u.Destinations) == 0 || slices.ContainsFunc(u.Destinations, badDestination):
		return fmt.Errorf("destinations are %v, expected CIDRs without host bits", u.Destinations)
	case len(u.Service) > 0 && !oneOfAFamily(u.Service):
		return fmt.Errorf("service is %v, expected an IP address of each family", u.Service)
	}
	uids := map[string]bool{}
	for i, g := range u.Gateways {
		nameless := g.ID == 0 && len(u.Service) > 0
		switch {
		case !nameless && (g.ID < 1 || g.ID > MaxEgressGateways || ids[g.ID]):
			return fmt.Errorf("gateways[%d].id is %d, expected one of 1 to %d that no other gateway of the pod has", i, g.ID, MaxEgressGateways)
		case g.UID == "" || uids[g.UID]:
			return fmt.Errorf("gateways[%d].uid is %q, expected one that no other gateway has", i, g.UID)
		case !oneOfAFamily(g.Addresses):
			return fmt.Errorf("gateways[%d].addresses are %v, expected an IP address of each family", i, g.Addresses)
		}
		ids[g.ID], uids[g.UID] = !nameless, true
	}
	return nil
}

func badAddr(a netip.Addr) bool { return !a.IsValid() || a.Is4In6() || a.Zone() != "" }

func badDestination(p netip.Prefix) bool { return !p.IsValid() || badAddr(p.Addr()) || p.Masked() != p }

// oneOfAFamily reports whether there are one or two addresses, each of a different family.
func oneOfAFamily(addrs []netip.Addr) bool {
	switch len(addrs) {
	case 1:
		return !badAddr(addrs[0])
	case 2:
		return !slices.ContainsFunc(addrs, badAddr) && addrs[0].Is4() != addrs[1].Is4()
	}
	return false
}
