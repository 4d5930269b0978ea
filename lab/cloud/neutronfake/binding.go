package neutronfake

import (
	"cmp"
	"maps"
)

// Host is a compute host with an agent that is alive, by what its agent is. The zero
// value is one of OVN.
type Host struct {
	// Agent is true for neutron-openvswitch-agent, and false for ovn-controller.
	Agent bool
	// Hybrid puts a Linux bridge between a port and the integration bridge
	// (firewall_driver iptables_hybrid); of Agent only.
	Hybrid bool
	// Bridge is the integration bridge. Empty: br-int, which OVN does not tell.
	Bridge string
	// VIF is a binding told word for word in place of all that; for what other
	// mechanism drivers do, and for lies.
	VIF VIF
}

// AddHost adds a host, or replaces it.
func (c *Cloud) AddHost(name string, h Host) { c.set(func() { c.hosts.byName[name] = h }) }

// RemoveHost takes a host's agent away: nothing new is bound there.
func (c *Cloud) RemoveHost(name string) { c.set(func() { delete(c.hosts.byName, name) }) }

// Plug says that a port's interface was plugged at a host. It becomes active if it is
// bound there. With OVN a port that is bound only later does not become active by that,
// with the agent of Open vSwitch it does.
func (c *Cloud) Plug(port, host string) {
	c.set(func() {
		if p := c.ports.byID[port]; p != nil {
			p.pluggedAt = host
			c.hosts.wire(p)
		}
	})
}

// Unplug says that a port's interface is plugged nowhere any more.
func (c *Cloud) Unplug(port string) {
	c.set(func() {
		if p := c.ports.byID[port]; p != nil {
			p.pluggedAt = ""
			if p.Status != "DOWN" {
				c.ports.change(p, func() { p.Status = "DOWN" })
			}
		}
	})
}

// wire makes a port active that is bound where it is plugged. c.mu is held, as in all
// below.
func (hs *hosts) wire(p *Port) {
	if p.pluggedAt != "" && p.pluggedAt == p.Host && p.VIF.Type != "binding_failed" && p.Status != "ACTIVE" {
		hs.ports.change(p, func() { p.Status = "ACTIVE" })
	}
}

// bind decides about a port's binding once its host is set: any change of a port whose
// binding failed tries again (ML2).
func (hs *hosts) bind(p *Port, moved bool) {
	if moved {
		p.Status = "DOWN"
	}
	if !moved && p.VIF.Type != "binding_failed" {
		return
	}
	p.VIF = hs.vif(p.Host)
	if hs.byName[p.Host].Agent && p.pluggedAt == p.Host && p.VIF.Type == "ovs" {
		p.Status = "ACTIVE"
	}
}

// vif is what comes of binding to a host.
func (hs *hosts) vif(host string) VIF {
	h, alive := hs.byName[host]
	switch {
	case host == "":
		return VIF{Type: "unbound", Details: map[string]any{}}
	case !alive:
		return VIF{Type: "binding_failed", Details: map[string]any{}}
	case h.VIF.Type != "":
		return h.VIF
	case h.Agent:
		return VIF{Type: "ovs", Details: map[string]any{
			"connectivity": "l2", "port_filter": true, "ovs_hybrid_plug": h.Hybrid, "datapath_type": "system", "bridge_name": cmp.Or(h.Bridge, "br-int"),
			"bound_drivers": map[string]any{"0": "openvswitch"},
		}}
	default:
		details := map[string]any{"connectivity": "l2", "port_filter": true, "bound_drivers": map[string]any{"0": "ovn"}}
		if h.Bridge != "" { // which releases after 21.0 tell
			details["bridge_name"] = h.Bridge
		}
		return VIF{Type: "ovs", Details: details}
	}
}

// answered is a port as the answer to a request has it that made or changed it. Neutron answers
// from what it knew before the binding was stored: without the drivers that bound the port, and,
// where late says so, without the last change of the revision.
func (hs *hosts) answered(p *Port, late bool) *Port {
	out := p.copied()
	if _, told := out.VIF.Details["bound_drivers"]; told {
		out.VIF.Details = maps.Clone(out.VIF.Details)
		delete(out.VIF.Details, "bound_drivers")
	}
	if late {
		hs.ports.change(p, func() {})
	}
	return &out
}
