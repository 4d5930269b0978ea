package neutron

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/berthnet/berth/internal/vpcport"
)

// request makes one, and reads the answer into something. what names it in errors.
func (c *Client) request(ctx context.Context, method, what string, path []string, query url.Values, headers map[string]string, body, into any, ok int) error {
	op := "Neutron " + method + " " + what
	s, err := c.service(ctx)
	if err != nil {
		return err
	}
	to := s.ServiceURL(path...)
	if len(query) > 0 {
		to += "?" + query.Encode()
	}
	o := &gophercloud.RequestOpts{JSONBody: body, JSONResponse: into, MoreHeaders: headers, OkCodes: []int{ok}}
	resp, err := s.Request(ctx, method, to, o)
	if err != nil {
		return failed(op, err)
	}
	if into == nil {
		return resp.Body.Close()
	}
	return nil
}

// bug is the error of an answer that cannot be right.
func bug(op, format string, args ...any) error {
	return &vpcport.Error{Class: vpcport.Bug, Op: op, Status: http.StatusOK, Message: fmt.Sprintf(format, args...)}
}

// Network implements vpcport.Provider.
func (c *Client) Network(ctx context.Context, idOrName string) (vpcport.Network, error) {
	const op = "Neutron GET networks"
	type networkJSON struct {
		ID, Name string
		MTU      int
	}
	var found []networkJSON
	for _, by := range []string{"id", "name"} {
		var list struct{ Networks []networkJSON }
		query := url.Values{by: {idOrName}, "fields": {"id", "name", "mtu"}}
		if err := c.request(ctx, http.MethodGet, "networks", []string{"networks"}, query, nil, nil, &list, http.StatusOK); err != nil {
			return vpcport.Network{}, err
		}
		if found = list.Networks; len(found) > 0 {
			break
		}
	}
	switch {
	case len(found) == 0:
		return vpcport.Network{}, &vpcport.Error{Class: vpcport.NetworkGone, Op: op, Message: "there is no network of the ID or name " + idOrName, About: idOrName}
	case len(found) > 1:
		return vpcport.Network{}, &vpcport.Error{Class: vpcport.Invalid, Op: op, Message: fmt.Sprintf("%d networks have the name %s: expected an ID such as %s", len(found), idOrName, found[0].ID), About: idOrName}
	case found[0].ID != idOrName && found[0].Name != idOrName || !uuid.MatchString(found[0].ID):
		return vpcport.Network{}, bug(op, "asked for %s, got network %.80q, named %.80q", idOrName, found[0].ID, found[0].Name)
	}
	n := vpcport.Network{ID: found[0].ID, Name: found[0].Name, MTU: found[0].MTU}
	var err error
	n.Subnets, err = c.subnets(ctx, n.ID)
	return n, err
}

func (c *Client) subnets(ctx context.Context, network string) ([]vpcport.Subnet, error) {
	const op = "Neutron GET subnets"
	var list struct {
		Subnets []struct {
			ID, Name, CIDR string
			NetworkID      string                                  `json:"network_id"`
			GatewayIP      *string                                 `json:"gateway_ip"`
			HostRoutes     []struct{ Destination, Nexthop string } `json:"host_routes"`
		}
	}
	if err := c.request(ctx, http.MethodGet, "subnets", []string{"subnets"}, url.Values{"network_id": {network}}, nil, nil, &list, http.StatusOK); err != nil {
		return nil, err
	}
	var out []vpcport.Subnet
	for _, j := range list.Subnets {
		s := vpcport.Subnet{ID: j.ID, Name: j.Name}
		var err error
		if s.CIDR, err = netip.ParsePrefix(j.CIDR); err != nil || j.NetworkID != network || !uuid.MatchString(j.ID) {
			return nil, bug(op, "asked for those of %s, got %.80q of %.80q with the CIDR %.80q", network, j.ID, j.NetworkID, j.CIDR)
		}
		if j.GatewayIP != nil {
			if s.Gateway, err = netip.ParseAddr(*j.GatewayIP); err != nil {
				return nil, bug(op, "subnet %s has the gateway %.80q", j.ID, *j.GatewayIP)
			}
		}
		for _, r := range j.HostRoutes {
			destination, err1 := netip.ParsePrefix(r.Destination)
			gateway, err2 := netip.ParseAddr(r.Nexthop)
			if err := cmp.Or(err1, err2); err != nil {
				return nil, bug(op, "subnet %s has the route %.80q by %.80q", j.ID, r.Destination, r.Nexthop)
			}
			s.Routes = append(s.Routes, vpcport.Route{Destination: destination, Gateway: gateway})
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b vpcport.Subnet) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Ports implements vpcport.Provider.
func (c *Client) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	const op = "Neutron GET ports"
	if f.Empty() || max(len(f.IDs), len(f.Devices), len(f.MACs)) > maxFilter {
		return nil, &vpcport.Error{Class: vpcport.Bug, Op: op, Message: "a filter that is empty or too long"}
	}
	query := url.Values{"id": f.IDs, "device_id": f.Devices, "fields": fields, "limit": {strconv.Itoa(pageSize)}, "sort_key": {"id"}, "sort_dir": {"asc"}}
	for _, m := range f.MACs {
		query.Add("mac_address", m.String())
	}
	if f.NetworkID != "" {
		query.Set("network_id", f.NetworkID)
	}
	if f.Owner != "" {
		query.Set("device_owner", f.Owner)
	}
	var out []vpcport.Port
	for {
		var list struct{ Ports []portJSON }
		if err := c.request(ctx, http.MethodGet, "ports", []string{"ports"}, query, nil, nil, &list, http.StatusOK); err != nil {
			return nil, err
		}
		for _, j := range list.Ports {
			p, err := j.port()
			if err != nil {
				return nil, bug(op, "%s", err)
			}
			if len(out) > 0 && p.ID <= out[len(out)-1].ID || !matches(f, p) {
				return nil, bug(op, "port %s, which is out of turn or was not asked for", p.ID)
			}
			out = append(out, p)
		}
		if len(list.Ports) < pageSize {
			return out, nil
		}
		query.Set("marker", out[len(out)-1].ID)
	}
}

// matches tells whether a port is one that was asked for.
func matches(f vpcport.Filter, p vpcport.Port) bool {
	hasMAC := len(f.MACs) == 0
	for _, m := range f.MACs {
		hasMAC = hasMAC || m.String() == p.MAC.String()
	}
	return hasMAC && (len(f.IDs) == 0 || slices.Contains(f.IDs, p.ID)) && (len(f.Devices) == 0 || slices.Contains(f.Devices, p.Device)) &&
		(f.NetworkID == "" || f.NetworkID == p.NetworkID) && (f.Owner == "" || f.Owner == p.Owner)
}

// Get implements vpcport.Provider.
func (c *Client) Get(ctx context.Context, id string) (vpcport.Port, error) {
	var reply struct{ Port portJSON }
	if err := c.request(ctx, http.MethodGet, "port", []string{"ports", id}, nil, nil, nil, &reply, http.StatusOK); err != nil {
		return vpcport.Port{}, err
	}
	return one("Neutron GET port", id, reply.Port)
}

// one is the port that was asked for by its ID.
func one(op, id string, j portJSON) (vpcport.Port, error) {
	p, err := j.port()
	switch {
	case err != nil:
		return vpcport.Port{}, bug(op, "%s", err)
	case p.ID != id:
		return vpcport.Port{}, bug(op, "asked for port %s, got %s", id, p.ID)
	}
	return p, nil
}

// Create implements vpcport.Provider.
func (c *Client) Create(ctx context.Context, ports []vpcport.NewPort) ([]vpcport.Port, error) {
	const op = "Neutron POST ports"
	body := struct {
		Ports []newJSON `json:"ports"`
	}{}
	for _, p := range ports {
		body.Ports = append(body.Ports, newPort(p, c.options.Project))
	}
	var reply struct{ Ports []portJSON }
	if err := c.request(ctx, http.MethodPost, "ports", []string{"ports"}, nil, nil, body, &reply, http.StatusCreated); err != nil {
		return nil, err
	}
	if len(reply.Ports) != len(ports) {
		return nil, bug(op, "asked for %d ports, got %d", len(ports), len(reply.Ports))
	}
	var out []vpcport.Port
	for i, j := range reply.Ports {
		p, err := j.port()
		if err != nil {
			return nil, bug(op, "%s", err)
		}
		if why := differs(ports[i], p); why != "" {
			return nil, bug(op, "port %s has another %s than was asked for", p.ID, why)
		}
		out = append(out, p)
	}
	return out, nil
}

// differs is what a port has that was not asked for; empty for one as it should be.
func differs(want vpcport.NewPort, p vpcport.Port) string {
	switch {
	case p.NetworkID != want.NetworkID:
		return "network"
	case p.Device != want.Device || p.Owner != vpcport.Owner:
		return "device"
	case want.MAC != nil && p.MAC.String() != want.MAC.String():
		return "MAC address"
	}
	for _, a := range want.Addresses {
		if !slices.ContainsFunc(p.Addresses, func(f vpcport.FixedIP) bool {
			return f.SubnetID == a.SubnetID && (!a.IP.IsValid() || f.IP == a.IP)
		}) {
			return "address"
		}
	}
	return ""
}

// Update implements vpcport.Provider.
func (c *Client) Update(ctx context.Context, id string, revision int, change vpcport.Change) (vpcport.Port, error) {
	body := struct {
		Port changeJSON `json:"port"`
	}{changeJSON{HostID: change.Host, DeviceID: change.Device, DeviceOwner: change.Owner, SecurityGroups: change.Groups}}
	var headers map[string]string
	if revision != 0 {
		headers = map[string]string{"If-Match": fmt.Sprintf("revision_number=%d", revision)}
	}
	var reply struct{ Port portJSON }
	if err := c.request(ctx, http.MethodPut, "port", []string{"ports", id}, nil, headers, body, &reply, http.StatusOK); err != nil {
		return vpcport.Port{}, err
	}
	return one("Neutron PUT port", id, reply.Port)
}

// Delete implements vpcport.Provider.
func (c *Client) Delete(ctx context.Context, id string) error {
	err := c.request(ctx, http.MethodDelete, "port", []string{"ports", id}, nil, nil, nil, nil, http.StatusNoContent)
	if vpcport.ClassOf(err) == vpcport.PortGone {
		return nil
	}
	return err
}
