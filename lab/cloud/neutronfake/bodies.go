package neutronfake

import (
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strings"
)

// portBody is a port in a request; nil fields are missing.
type portBody struct {
	Name     *string   `json:"name"`
	Network  *string   `json:"network_id"`
	Project  *string   `json:"project_id"`
	Tenant   *string   `json:"tenant_id"`
	Device   *string   `json:"device_id"`
	Owner    *string   `json:"device_owner"`
	MAC      *string   `json:"mac_address"`
	FixedIPs *[]wanted `json:"fixed_ips"`
	Groups   *[]string `json:"security_groups"`
	Host     *string   `json:"binding:host_id"`
	AdminUp  *bool     `json:"admin_state_up"`
}

// Attributes of a port by the methods that may set them, except those that the lab does not support.
var (
	postAttributes = []string{
		"name", "network_id", "project_id", "tenant_id", "device_id", "device_owner", "mac_address", "fixed_ips", "security_groups",
		"binding:host_id", "admin_state_up",
	}
	putAttributes  = []string{"name", "device_id", "device_owner", "security_groups", "binding:host_id", "admin_state_up"}
	readAttributes = []string{"id", "status", "revision_number", "created_at", "updated_at", "tags", "binding:vif_type", "binding:vif_details"}
)

// portsOf decodes the ports of a request: {"port": {}} or {"ports": [{}, {}]}.
func portsOf(body []byte) (out []*portBody, bulk bool, err *refusal) {
	var envelope map[string]json.RawMessage
	if json.Unmarshal(body, &envelope) != nil || envelope == nil {
		return nil, false, badRequest("Body contains invalid data")
	}
	one, isOne := envelope["port"]
	many, isMany := envelope["ports"]
	switch {
	case isMany:
		var items []json.RawMessage
		if json.Unmarshal(many, &items) != nil || len(items) == 0 {
			return nil, true, badRequest("Resources required")
		}
		for _, item := range items {
			b, err := port(item, "POST", postAttributes)
			if err != nil {
				return nil, true, err
			}
			out = append(out, b)
		}
		return out, true, nil
	case isOne:
		b, err := port(one, "POST", postAttributes)
		return []*portBody{b}, false, err
	default:
		return nil, false, badRequest("Unable to find 'port' in request body")
	}
}

// port decodes one port, and rejects unknown attributes and those that the method may not set.
func port(body []byte, method string, may []string) (*portBody, *refusal) {
	var attributes map[string]json.RawMessage
	if json.Unmarshal(body, &attributes) != nil || attributes == nil {
		return nil, badRequest("Body contains invalid data")
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		switch {
		case slices.Contains(may, name):
		case !slices.Contains(readAttributes, name) && !slices.Contains(postAttributes, name):
			return nil, badRequest("Unrecognized attribute(s) '%s'", name)
		case method == "PUT":
			return nil, badRequest("Cannot update read-only attribute %s", name)
		default:
			return nil, badRequest("Attribute '%s' not allowed in POST", name)
		}
	}
	b := &portBody{}
	if err := json.Unmarshal(body, b); err != nil {
		return nil, badRequest("Invalid input. Reason: %v.", err)
	}
	return b, b.check(method)
}

// check validates attributes (neutron-lib, api/definitions/port.py).
func (b *portBody) check(method string) *refusal {
	if method == "POST" && b.Network == nil {
		return badRequest("Failed to parse request. Required attribute 'network_id' not specified")
	}
	for _, s := range []struct {
		name  string
		value *string
	}{{"name", b.Name}, {"device_id", b.Device}, {"device_owner", b.Owner}, {"binding:host_id", b.Host}} {
		if s.value != nil && len([]rune(*s.value)) > 255 {
			return badRequest("Invalid input for %s. Reason: '%s' exceeds maximum length of 255.", s.name, *s.value)
		}
	}
	if b.MAC != nil {
		hw, err := net.ParseMAC(*b.MAC)
		if err != nil || len(hw) != 6 || *b.MAC == "00:00:00:00:00:00" {
			return badRequest("Invalid input for mac_address. Reason: '%s' is not a valid MAC address.", *b.MAC)
		}
	}
	if b.Groups != nil {
		for _, g := range *b.Groups {
			if !uuid(g) {
				return badRequest("Invalid input for security_groups. Reason: '%s' is not a valid UUID.", g)
			}
		}
	}
	if b.Project != nil && b.Tenant != nil && *b.Project != *b.Tenant {
		return badRequest("'project_id' and 'tenant_id' do not match")
	}
	return nil
}

// project returns the project ID of a new port, or "" if neither the request nor the caller has one.
func (b *portBody) project(who caller) string {
	for _, p := range []*string{b.Project, b.Tenant} {
		if p != nil {
			return *p
		}
	}
	return who.project
}

// copyTo copies plain attributes of the request.
func (b *portBody) copyTo(p *Port) {
	for _, s := range []struct{ from, to *string }{{b.Name, &p.Name}, {b.Device, &p.Device}, {b.Owner, &p.Owner}, {b.MAC, &p.MAC}} {
		if s.from != nil {
			*s.to = *s.from
		}
	}
	p.MAC = strings.ToLower(p.MAC)
}

// portEnvelope is the port of a request, or nil.
func portEnvelope(body []byte) json.RawMessage {
	var envelope struct {
		Port json.RawMessage `json:"port"`
	}
	if json.Unmarshal(body, &envelope) != nil {
		return nil
	}
	return envelope.Port
}
