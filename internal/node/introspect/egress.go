package introspect

import "net/netip"

// Egress is how a pod reaches networks outside besides its own interface, as recorded on
// its node.
type Egress struct {
	Egresses []UsedEgress `json:"egresses"`          // that the pod is a client of; never null
	Forward  bool         `json:"forward,omitempty"` // the pod is a gateway, whose own namespace forwards packets
	State    string       `json:"state,omitempty"`   // changing, while it is being set up anew
}

// UsedEgress is an Egress as a client's node has it.
type UsedEgress struct {
	Namespace       string          `json:"namespace"`
	Name            string          `json:"name"`
	Destinations    []netip.Prefix  `json:"destinations"`
	Gateways        []EgressGateway `json:"gateways"`          // never null
	Service         []netip.Addr    `json:"service,omitempty"` // where tunnels lead there and not to gateways
	SourcePortAuto  bool            `json:"sourcePortAuto,omitempty"`
	OriginatingOnly bool            `json:"originatingOnly,omitempty"`
}

// EgressGateway is a gateway of an Egress, as a client's node has it.
type EgressGateway struct {
	ID        int          `json:"id,omitempty"` // in the pod's kernel: its part of the mark, and its table
	UID       string       `json:"uid"`          // of the gateway's pod
	Addresses []netip.Addr `json:"addresses"`
	Ending    bool         `json:"ending,omitempty"` // it serves the connections that it has
	Chosen    bool         `json:"chosen,omitempty"` // new connections may take it
}
