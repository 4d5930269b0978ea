package rest

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

// Request is one request to a provider.
type Request struct {
	API    string // its name in errors, such as Neutron
	Method string
	Path   string // such as ports/ID
	Query  url.Values
	Body   any
	Match  string // If-Match; empty: none
	Port   bool   // it names one port by its ID
	Names  Names
}

// OfPort is a request that names one port.
func OfPort(api, method, id string) Request {
	return Request{API: api, Method: method, Path: "ports/" + id, Port: true, Names: Names{Ports: []string{id}}}
}

// Delete deletes a port by call, which sends a request. A port that does not exist is no error.
func Delete(api, id string, call func(Request) error) error {
	r := OfPort(api, http.MethodDelete, id)
	err := CheckID(r.Op(), id)
	if err == nil {
		err = call(r)
	}
	if vpcport.ClassOf(err) == vpcport.PortGone {
		return nil
	}
	return err
}

// Op is the operation in errors. It has no IDs, since metrics count by it.
func (r Request) Op() string {
	collection, _, _ := strings.Cut(r.Path, "/")
	return r.API + " " + r.Method + " " + collection
}

// byStatus are the classes of statuses whose message does not matter.
var byStatus = map[int]vpcport.Class{
	http.StatusTooManyRequests: vpcport.Throttled, http.StatusRequestTimeout: vpcport.Transient,
	http.StatusBadGateway: vpcport.Transient, http.StatusServiceUnavailable: vpcport.Transient, http.StatusGatewayTimeout: vpcport.Transient,
	http.StatusUnauthorized: vpcport.Unauthorized, http.StatusForbidden: vpcport.Forbidden,
	http.StatusRequestEntityTooLarge: vpcport.TooLarge, http.StatusRequestURITooLong: vpcport.TooLarge,
}

// ByStatus is the class of a status whose message does not matter; ok is false for other statuses. A
// service that says when it is available again limits the rate of its clients.
func ByStatus(status int, retryAfter time.Duration) (class vpcport.Class, ok bool) {
	if status == http.StatusServiceUnavailable && retryAfter > 0 {
		return vpcport.Throttled, true
	}
	class, ok = byStatus[status]
	return class, ok
}

// List is a listing of ports by a filter.
type List struct {
	Op        string
	Filter    vpcport.Filter
	MaxFilter int  // values of a list
	MACs      bool // the provider filters by MAC addresses
	// Read makes the request with a query. It returns the ports of the reply that may match.
	Read func(query url.Values) ([]vpcport.Port, error)
}

// Ports lists the ports that match the filter. It sends one list of the filter, in as many requests as
// the length of URLs requires, and applies the whole filter again.
func (l List) Ports() ([]vpcport.Port, error) {
	if err := CheckFilter(l.Op, l.Filter, l.MaxFilter); err != nil {
		return nil, err
	}
	var out []vpcport.Port
	seen := map[string]bool{}
	name, values := l.sent()
	for _, batch := range Batches(name, values) {
		query := url.Values{}
		for param, v := range map[string][]string{name: batch, "network_id": {l.Filter.NetworkID}, "device_owner": {l.Filter.Owner}} {
			if param != "" && v[0] != "" {
				query[param] = v
			}
		}
		found, err := l.Read(query)
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			if !seen[p.ID] && l.Filter.Has(p) {
				seen[p.ID] = true
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// sent is the list of the filter that is sent: the most selective one.
func (l List) sent() (name string, values []string) {
	switch f := l.Filter; {
	case len(f.IDs) > 0:
		return "id", f.IDs
	case len(f.Devices) > 0:
		return "device_id", f.Devices
	case l.MACs && len(f.MACs) > 0:
		for _, m := range f.MACs {
			values = append(values, m.String())
		}
		return "mac_address", values
	}
	return "", nil
}

// Names are the names and IDs in a request, any of which can be the cause of an error.
type Names struct {
	Networks, Subnets, Groups, IPs, MACs, Ports []string
}

// NamesOf are the names in a request for ports.
func NamesOf(ports []vpcport.NewPort) (n Names) {
	add := func(to *[]string, name string) {
		if name != "" && !slices.Contains(*to, name) {
			*to = append(*to, name)
		}
	}
	for _, p := range ports {
		add(&n.Networks, p.NetworkID)
		for _, g := range p.Groups {
			add(&n.Groups, g)
		}
		for _, a := range p.Addresses {
			add(&n.Subnets, a.SubnetID)
			if a.IP.IsValid() {
				add(&n.IPs, a.IP.String())
			}
		}
		if p.MAC != nil {
			add(&n.MACs, p.MAC.String())
		}
	}
	return n
}

// About is the name that caused an error: one of the right kind for the class that is in the message, or
// the only one in the request. Servers have names in messages only, and for a full subnet Neutron names
// the network.
func (n Names) About(class vpcport.Class, message string) string {
	var of []string
	switch class {
	case vpcport.NetworkGone:
		of = n.Networks
	case vpcport.ReferenceGone:
		of = slices.Concat(n.Subnets, n.Groups)
	case vpcport.SubnetFull:
		of = n.Subnets
	case vpcport.AddressTaken:
		of = n.IPs
	case vpcport.MACTaken:
		of = n.MACs
	case vpcport.Invalid:
		of = slices.Concat(n.IPs, n.Groups, n.Subnets)
	case vpcport.PortGone, vpcport.Stale, vpcport.Conflict:
		of = n.Ports
	}
	words := strings.FieldsFunc(strings.ToLower(message), func(r rune) bool {
		return r > 0x7f || !strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyz-_.:", r)
	})
	for _, name := range of {
		for _, w := range words {
			if w == name || strings.TrimRight(w, ".:") == name {
				return name
			}
		}
	}
	if len(of) == 1 && class != vpcport.Invalid {
		return of[0]
	}
	return ""
}
