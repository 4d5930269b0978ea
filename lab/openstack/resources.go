package openstack

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
)

// Network is a network of the project.
type Network struct {
	ID   string `json:"id,omitempty"` // set by Neutron
	Name string `json:"name"`

	Project string `json:"project_id"`
}

// Subnet is a subnet of a network. Neutron chooses the values of zero fields.
type Subnet struct {
	ID      string       `json:"id,omitempty"`
	Name    string       `json:"name"`
	Network string       `json:"network_id"`
	CIDR    netip.Prefix `json:"cidr"`
	// Version is set from CIDR.
	Version int        `json:"ip_version"`
	Gateway netip.Addr `json:"gateway_ip,omitzero"`
	// Pools are the addresses from which Neutron allocates at random. A port may request others.
	Pools []Pool `json:"allocation_pools,omitempty"`

	Project string `json:"project_id"`
}

// Pool is an inclusive range of addresses.
type Pool struct {
	Start netip.Addr `json:"start"`
	End   netip.Addr `json:"end"`
}

// Group is a security group. A new one allows all egress and no ingress.
type Group struct {
	ID   string `json:"id,omitempty"`
	Name string `json:"name"`

	Project string `json:"project_id"`
}

// Rule allows packets of the ports of a group. Zero fields match everything.
type Rule struct {
	ID        string `json:"id,omitempty"`
	Group     string `json:"security_group_id"`
	Direction string `json:"direction"` // ingress or egress
	EtherType string `json:"ethertype"` // IPv4 or IPv6
	Protocol  string `json:"protocol,omitempty"`
	First     int    `json:"port_range_min,omitempty"`
	Last      int    `json:"port_range_max,omitempty"`

	Project string `json:"project_id"`
}

// Port is a port as its owner sees it.
type Port struct {
	ID      string   `json:"id,omitempty"`
	Name    string   `json:"name"`
	Network string   `json:"network_id"`
	MAC     string   `json:"mac_address,omitempty"`
	Fixed   []Fixed  `json:"fixed_ips,omitempty"`
	Groups  []string `json:"security_groups,omitempty"` // nil: the project's default group
	Device  string   `json:"device_id,omitempty"`
	Owner   string   `json:"device_owner,omitempty"`
	Host    string   `json:"binding:host_id,omitempty"`
	Status  string   `json:"status,omitempty"` // DOWN, BUILD, ACTIVE, ERROR; Neutron's

	Project string `json:"project_id"`
}

// Fixed is an address of a port.
type Fixed struct {
	Subnet string     `json:"subnet_id,omitempty"`
	IP     netip.Addr `json:"ip_address,omitzero"`
}

// create creates a resource in the project and returns Neutron's representation.
func create[T any](ctx context.Context, c *Cloud, kind string, want T) (T, error) {
	out := map[string]T{}
	if err := c.network(ctx, "POST", kind+"s", map[string]T{kindName(kind): want}, &out); err != nil {
		return want, fmt.Errorf("create a %s: %w", kind, err)
	}
	return out[kindName(kind)], nil
}

// kindName returns the name of a kind in bodies, with underscores for the dashes of paths.
func kindName(kind string) string {
	b := []byte(kind)
	for i := range b {
		if b[i] == '-' {
			b[i] = '_'
		}
	}
	return string(b)
}

// AddNetwork creates a network.
func (c *Cloud) AddNetwork(ctx context.Context, n Network) (Network, error) {
	n.Project = c.Project()
	return create(ctx, c, "network", n)
}

// AddSubnet creates a subnet.
func (c *Cloud) AddSubnet(ctx context.Context, s Subnet) (Subnet, error) {
	s.Project, s.Version = c.Project(), 4
	if s.CIDR.Addr().Is6() {
		s.Version = 6
	}
	return create(ctx, c, "subnet", s)
}

// AddGroup creates a security group.
func (c *Cloud) AddGroup(ctx context.Context, name string) (Group, error) {
	return create(ctx, c, "security-group", Group{Name: name, Project: c.Project()})
}

// AddRule adds a rule to a group.
func (c *Cloud) AddRule(ctx context.Context, r Rule) (Rule, error) {
	r.Project = c.Project()
	return create(ctx, c, "security-group-rule", r)
}

// AddPort creates a port.
func (c *Cloud) AddPort(ctx context.Context, p Port) (Port, error) {
	p.Project = c.Project()
	return create(ctx, c, "port", p)
}

// Tag replaces the tags of a port.
func (c *Cloud) Tag(ctx context.Context, port string, tags []string) error {
	return c.network(ctx, "PUT", "ports/"+port+"/tags", map[string]any{"tags": tags}, nil)
}

// Ports lists the ports of a network.
func (c *Cloud) Ports(ctx context.Context, network string) ([]Port, error) {
	var out struct {
		Ports []Port `json:"ports"`
	}
	err := c.network(ctx, "GET", "ports?network_id="+url.QueryEscape(network), nil, &out)
	return out.Ports, err
}

// Delete deletes a resource of a kind: network, subnet, security-group, security-group-rule, port.
func (c *Cloud) Delete(ctx context.Context, kind, id string) error {
	return c.network(ctx, "DELETE", kind+"s/"+id, nil, nil)
}

// SetQuota sets the maximum number of ports of the project; -1: no limit.
func (c *Cloud) SetQuota(ctx context.Context, ports int) error {
	return c.network(ctx, "PUT", "quotas/"+c.Project(), map[string]any{"quota": map[string]any{"port": ports}}, nil)
}

// agent is a host's agent as Neutron knows it.
type agent struct {
	Host  string `json:"host"`
	Alive bool   `json:"alive"`
}

// agents lists the agents of a host.
func (c *Cloud) agents(ctx context.Context, host string) ([]agent, error) {
	var out struct {
		Agents []agent `json:"agents"`
	}
	err := c.network(ctx, "GET", "agents?host="+url.QueryEscape(host), nil, &out)
	return out.Agents, err
}
