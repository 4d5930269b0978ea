package alcorfake

import (
	"encoding/json"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// entity is a port in requests and replies (PortEntity). Nil fields are null; replies omit them.
type entity struct {
	ID       *string    `json:"id,omitempty"`
	Project  *string    `json:"project_id,omitempty"`
	Name     *string    `json:"name,omitempty"`
	Network  *string    `json:"network_id,omitempty"`
	Up       *bool      `json:"admin_state_up,omitempty"`
	Device   *string    `json:"device_id,omitempty"`
	Owner    *string    `json:"device_owner,omitempty"`
	MAC      *string    `json:"mac_address,omitempty"`
	Status   *string    `json:"status,omitempty"`
	FixedIPs *[]fixedIP `json:"fixed_ips,omitempty"`
	Groups   *[]string  `json:"security_groups,omitempty"`
	Host     *string    `json:"binding:host_id,omitempty"`
	VIF      *string    `json:"binding:vif_type,omitempty"`
	Tags     *[]string  `json:"tags,omitempty"`
	Security *bool      `json:"port_security_enabled,omitempty"`
	Created  *string    `json:"create_at,omitempty"`
	Revision *int       `json:"revision_number,omitempty"`
}

type fixedIP struct {
	Subnet *string `json:"subnet_id"`
	IP     *string `json:"ip_address"`
}

// known matches the fields of PortEntity, including those that the lab ignores.
var known = regexp.MustCompile(`^(id|project_id|tenant_id|name|description|network_id|admin_state_up|mac_address|veth_name|fast_path|device_id|device_owner|status|fixed_ips|allowed_address_pairs|extra_dhcp_opts|security_groups|binding:(host_id|profile|vif_details|vif_type|vnic_type)|network_ns|dns_(name|domain|assignment)|(create|update)_at|ip_allocation|port_security_enabled|qos_(network_)?policy_id|revision_number|resource_request|tags|uplink_status_propagation|mac_learning_enabled)$`)

// decode decodes the ports of a request, and returns the names of unknown fields.
func decode(body []byte, name string, many bool) (out []*entity, ignored []string, e *refusal) {
	var envelope map[string]json.RawMessage
	if err := json.Unmarshal(body, &envelope); err != nil {
		return nil, nil, refuse(400, "JSON parse error: "+err.Error())
	}
	for _, k := range slices.Sorted(maps.Keys(envelope)) {
		if k != name {
			ignored = append(ignored, k)
		}
	}
	raw, ok := envelope[name]
	if !ok || string(raw) == "null" {
		return nil, ignored, errNull
	}
	list := []json.RawMessage{raw}
	if many {
		list = nil
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, ignored, refuse(400, "JSON parse error: "+err.Error())
		}
	}
	for _, one := range list {
		var fields map[string]json.RawMessage
		b := &entity{}
		for _, to := range []any{&fields, b} {
			if err := json.Unmarshal(one, to); err != nil {
				return nil, ignored, refuse(400, "JSON parse error: "+err.Error())
			}
		}
		for _, k := range slices.Sorted(maps.Keys(fields)) {
			if !known.MatchString(k) {
				ignored = append(ignored, name+"."+k)
			}
		}
		out = append(out, b)
	}
	return out, ignored, nil
}

var macForm = regexp.MustCompile(`^([A-Fa-f0-9]{2}[-,:]){5}[A-Fa-f0-9]{2}$`)

// check validates a port as the controller does (RestParameterValidator.checkPort).
func (b *entity) check() *refusal {
	if b.MAC != nil && !macForm.MatchString(*b.MAC) {
		return errMAC
	}
	if b.FixedIPs == nil {
		return nil
	}
	for _, f := range *b.FixedIPs {
		switch {
		case f.Subnet == nil && f.IP == nil, f.Subnet != nil && *f.Subnet == "":
			return errFixedIPs
		case f.IP != nil:
			if _, err := netip.ParseAddr(*f.IP); err != nil {
				return errFixedIPs
			}
		}
	}
	return nil
}

// described converts a port for replies.
func (a *api) described(p *Port) entity {
	secured, up, vif := !p.Unsecured, true, "ovs"
	at := p.Created.UTC().Format("2006-01-02 15:04:05")
	e := entity{
		ID: &p.ID, Project: &p.Project, Network: &p.Network, Up: &up, MAC: &p.MAC, VIF: &vif, Security: &secured, Created: &at,
	}
	for from, to := range map[*string]**string{&p.Name: &e.Name, &p.Device: &e.Device, &p.Owner: &e.Owner, &p.Host: &e.Host} {
		value := *from
		*to = &value
	}
	if p.Host == "" {
		e.Host = nil
	}
	if p.Status != "" {
		status := p.Status
		if a.options.Lower {
			status = strings.ToLower(status)
		}
		e.Status = &status
	}
	ips := []fixedIP{}
	for _, f := range p.FixedIPs {
		subnet, ip := f.Subnet, f.IP.String()
		ips = append(ips, fixedIP{&subnet, &ip})
	}
	groups := slices.Clone(p.Groups)
	e.FixedIPs, e.Groups = &ips, &groups
	if p.Tags != nil {
		tags := slices.Clone(p.Tags)
		e.Tags = &tags
	}
	return e
}
