package neutronfake

import (
	"cmp"
	"maps"
)

// Host is a compute host with a live agent. The zero value has OVN.
type Host struct {
	// Agent is true for neutron-openvswitch-agent, and false for ovn-controller.
	Agent bool
	// Hybrid puts a Linux bridge between a port and the integration bridge (firewall_driver
	// iptables_hybrid). It requires Agent.
	Hybrid bool
	// Bridge is the integration bridge. Empty: br-int, which OVN omits.
	Bridge string
	// VIF overrides the binding, for other mechanism drivers and for invalid replies.
	VIF VIF
}

// AddHost adds or replaces a host.
func (c *Cloud) AddHost(name string, h Host) { c.set(func() { c.hosts.byName[name] = h }) }

// RemoveHost removes the agent of a host, so that new bindings fail there.
func (c *Cloud) RemoveHost(name string) { c.set(func() { delete(c.hosts.byName, name) }) }

// Plug reports that the interface of a port was plugged on a host. The port becomes active if it is bound
// there. If it is bound later, it becomes active with the Open vSwitch agent, but not with OVN.
func (c *Cloud) Plug(port, host string) {
	c.set(func() {
		if p := c.ports.byID[port]; p != nil {
			p.pluggedAt = host
			c.hosts.wire(p)
		}
	})
}

// Unplug reports that the interface of a port was unplugged.
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

// wire activates a port that is bound where it is plugged. The caller must hold the lock, as for all
// methods below.
func (hs *hosts) wire(p *Port) {
	if p.pluggedAt != "" && p.pluggedAt == p.Host && p.VIF.Type != "binding_failed" && p.Status != "ACTIVE" {
		hs.ports.change(p, func() { p.Status = "ACTIVE" })
	}
}

// bind updates the binding of a port whose host is set. Any change retries a failed binding (ML2).
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

// vif returns the result of binding a port to a host.
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
		if h.Bridge != "" { // in releases after 21.0
			details["bridge_name"] = h.Bridge
		}
		return VIF{Type: "ovs", Details: details}
	}
}

// answered returns a port as in the reply to the request that created or changed it. Neutron replies
// before it stores the binding: the reply lacks the drivers that bound the port and, if late is set, the
// latest revision.
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
