package attachment

import (
	"fmt"
	"net/netip"
	"time"
)

// Adopted is the former state of an attachment that another network created and Berth took over. It suffices to give
// the attachment back.
type Adopted struct {
	From     string `json:"from"`              // the former network, such as amazon-vpc-cni
	Network  string `json:"network,omitempty"` // its name in the runtime's configuration, if it differs from Key.Network
	HostLink string `json:"hostLink"`          // former name of the link on the node
	Alias    string `json:"alias,omitempty"`   // of the link
	MTU      int    `json:"mtu,omitempty"`     // of the link; 0: unknown
	// Routes and Rules are those on the node that the former network made for the pod.
	Routes []AdoptedRoute `json:"routes,omitempty"`
	Rules  []AdoptedRule  `json:"rules,omitempty"`
	// Created is when the former network assigned the addresses; zero: unknown.
	Created time.Time `json:"created,omitzero"`
}

// AdoptedRoute is a route to the pod's link.
type AdoptedRoute struct {
	Destination netip.Prefix `json:"destination"`
	Table       int          `json:"table"`
	Protocol    int          `json:"protocol,omitempty"`
	Metric      int          `json:"metric,omitempty"`
	Gateway     netip.Addr   `json:"gateway,omitzero"` // inside the pod; zero: the address is on the link
}

// AdoptedRule is a policy rule for packets from or to an address of the pod.
type AdoptedRule struct {
	Priority int          `json:"priority"`
	From     netip.Prefix `json:"from,omitzero"`
	To       netip.Prefix `json:"to,omitzero"`
	Table    int          `json:"table"`
	Protocol int          `json:"protocol,omitempty"`
}

// FormerLink returns the name that the attachment's link had when it was adopted, or "".
func (r Record) FormerLink() string {
	if r.Adopted == nil {
		return ""
	}
	return r.Adopted.HostLink
}

// checkAdopted validates Adopted.
func (r Record) checkAdopted() error {
	a := r.Adopted
	switch {
	case a == nil:
		return nil
	case a.From == "":
		return fmt.Errorf("adopted.from is empty, expected the former network")
	case !linkName.MatchString(a.HostLink) || a.HostLink == r.HostLink:
		return fmt.Errorf("adopted.hostLink is %q, expected the former name of link %s", a.HostLink, r.HostLink)
	case r.Lease.Empty():
		return fmt.Errorf("adopted is set, and the lease has no address")
	}
	for i, route := range a.Routes {
		if badDestination(route.Destination) || route.Table < 1 || route.Protocol < 0 || route.Metric < 0 {
			return fmt.Errorf("adopted.routes[%d] is %+v, expected a CIDR without host bits, and a table", i, route)
		}
	}
	for i, rule := range a.Rules {
		if rule.From.IsValid() == rule.To.IsValid() || badDestination(rule.Address()) || rule.Table < 1 || rule.Priority < 1 || rule.Protocol < 0 {
			return fmt.Errorf("adopted.rules[%d] is %+v, expected a priority, a CIDR from or to which packets are, and a table", i, rule)
		}
	}
	return nil
}

// Address returns the CIDR that the rule applies to.
func (r AdoptedRule) Address() netip.Prefix {
	if r.From.IsValid() {
		return r.From
	}
	return r.To
}
