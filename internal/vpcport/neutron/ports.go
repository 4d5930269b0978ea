package neutron

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/rest"
)

// maxBatch keeps requests below 114,688 bytes, the limit of oslo.middleware's filter sizelimit
// (max_request_body_size) in front of Neutron. A port takes about 600 bytes, and 1,700 with the longest
// names and 16 groups (TestLargestBatch).
const maxBatch = 64

// maxName is the maximum length of a port's name in bytes. Neutron allows as many characters.
const maxName = 255

// Traits implements vpcport.Provider.
func (p *Provider) Traits() vpcport.Traits {
	return vpcport.Traits{MaxBatch: maxBatch, MaxFilter: maxFilter, ChosenMAC: !p.settings.ProviderMAC, Revisions: true}
}

// Create implements vpcport.Provider with one request: ML2 makes all of its ports in one transaction. A
// second request reads the bound ports.
func (p *Provider) Create(ctx context.Context, ports []vpcport.NewPort) ([]vpcport.Port, error) {
	r := rest.Request{API: api, Method: http.MethodPost, Path: "ports", Names: rest.NamesOf(ports)}
	if len(ports) == 0 || len(ports) > maxBatch {
		return nil, &vpcport.Error{Class: vpcport.TooLarge, Op: r.Op(), Message: fmt.Sprintf("a request for %d ports, expected 1 to %d", len(ports), maxBatch)}
	}
	body := struct {
		Ports []wireNew `json:"ports"`
	}{}
	for _, n := range ports {
		if !rest.ValidID(n.NetworkID) {
			return nil, rest.BadRequest(r.Op(), "a port of network %q", n.NetworkID)
		}
		body.Ports = append(body.Ports, p.settings.wire(n))
	}
	r.Body = body
	var reply struct {
		Ports []wirePort `json:"ports"`
	}
	if err := p.call(ctx, r, &reply); err != nil {
		return nil, p.networkGone(ctx, err, r.Names.Networks)
	}
	out, err := made(r.Op(), ports, reply.Ports)
	if err != nil {
		return nil, err
	}
	return p.settled(ctx, out)
}

// noSubnets is in Neutron's message to an administrator who requests addresses of a network that has no
// subnets or does not exist.
const noSubnets = "IP allocation requires subnets for network"

// networkGone turns an error with noSubnets into NetworkGone if one of the networks does not exist.
func (p *Provider) networkGone(ctx context.Context, err error, networks []string) error {
	refused, ok := errors.AsType[*vpcport.Error](err)
	if !ok || refused.Class != vpcport.Invalid || !strings.Contains(refused.Message, noSubnets) {
		return err
	}
	for _, id := range networks {
		if found, lerr := p.networks(ctx, "id", id); lerr == nil && len(found) == 0 {
			out := *refused
			out.Class, out.About, out.Message = vpcport.NetworkGone, id, "no network has the ID "+id+": "+refused.Message
			return &out
		}
	}
	return err
}

// wire converts a request for a port.
func (s Settings) wire(n vpcport.NewPort) wireNew {
	w := wireNew{Network: n.NetworkID, Project: s.Project, Name: vpcport.Cut(n.Name, maxName), Device: n.Device, Owner: vpcport.Owner, Host: n.Host}
	if n.MAC != nil {
		w.MAC = n.MAC.String()
	}
	if n.Addresses != nil {
		ips := rest.IPs(n.Addresses)
		w.FixedIPs = &ips
	}
	if n.Groups != nil {
		w.Groups = &n.Groups
	}
	return w
}

// made decodes new ports in the order of their requests, and compares each with its request.
func made(op string, asked []vpcport.NewPort, got []wirePort) ([]vpcport.Port, error) {
	if len(got) != len(asked) {
		return nil, rest.BadReply(op, "requested %d ports, got %d", len(asked), len(got))
	}
	got = inOrder(asked, got)
	ids := map[string]bool{}
	out := make([]vpcport.Port, len(got))
	for i, w := range got {
		var err error
		if out[i], err = w.port(op); err != nil {
			return nil, err
		}
		if what := vpcport.Mismatch(asked[i], out[i]); what != "" || ids[w.ID] {
			return nil, rest.BadReply(op, "port %s for device %q has another %s", w.ID, asked[i].Device, what)
		}
		ids[w.ID] = true
	}
	return out, nil
}

// inOrder sorts ports like their requests if their devices are unique. Neutron keeps the order, but its
// API does not promise it.
func inOrder(asked []vpcport.NewPort, got []wirePort) []wirePort {
	by := map[string]int{}
	for i, w := range got {
		by[w.Device] = i
	}
	out := make([]wirePort, 0, len(got))
	for _, n := range asked {
		i, ok := by[n.Device]
		if !ok || len(by) != len(got) {
			return got
		}
		out = append(out, got[i])
	}
	return out
}

// Update implements vpcport.Provider. Neutron retries a failed binding with every change.
func (p *Provider) Update(ctx context.Context, id string, revision int, c vpcport.Change) (vpcport.Port, error) {
	r := rest.OfPort(api, http.MethodPut, id)
	r.Names.Groups = c.Groups
	change := wireChange{Host: c.Host, Device: c.Device, Owner: c.Owner}
	if c.Groups != nil {
		change.Groups = &c.Groups
	}
	if c.Empty() {
		return vpcport.Port{}, rest.BadRequest(r.Op(), "an empty change")
	}
	if revision != 0 {
		r.Match = fmt.Sprintf("revision_number=%d", revision)
	}
	r.Body = map[string]wireChange{"port": change}
	got, err := p.one(ctx, id, r)
	if err != nil {
		return vpcport.Port{}, err
	}
	if unmet := c.Unmet(got); unmet != "" {
		return vpcport.Port{}, rest.BadReply(r.Op(), "%s", unmet)
	}
	if got.Revision < revision {
		return vpcport.Port{}, rest.BadReply(r.Op(), "port %s has revision %d after a change of revision %d", id, got.Revision, revision)
	}
	return p.settledOne(ctx, got, c)
}

// Delete implements vpcport.Provider.
func (p *Provider) Delete(ctx context.Context, id string) error {
	return rest.Delete(api, id, func(r rest.Request) error { return p.call(ctx, r, nil) })
}

// settled reads new ports with a host again. Neutron replies to the creation before it stores the
// binding: without the drivers that bound the port, which identify OVN, and with a revision that changes
// a moment later (TestProviderWithNeutron of test/e2e/neutron, with Neutron 21.0). An error is of class
// Transient, since the ports exist.
func (p *Provider) settled(ctx context.Context, ports []vpcport.Port) ([]vpcport.Port, error) {
	place := map[string]int{}
	var ids []string
	for i, o := range ports {
		if o.Host != "" {
			place[o.ID], ids = i, append(ids, o.ID)
		}
	}
	if len(ids) == 0 {
		return ports, nil
	}
	now, err := p.Ports(ctx, vpcport.Filter{IDs: ids})
	if err != nil {
		return nil, &vpcport.Error{Class: vpcport.Transient, Op: "Neutron GET ports", Message: "the ports exist, but their bindings cannot be read: " + err.Error(), Err: err}
	}
	for _, o := range now { // a port that was deleted meanwhile stays as it was until the next look
		ports[place[o.ID]] = o
	}
	return ports, nil
}

// settledOne does the same for a changed port: if the change has a host or the port is bound, the reply
// to the change is incomplete.
func (p *Provider) settledOne(ctx context.Context, changed vpcport.Port, c vpcport.Change) (vpcport.Port, error) {
	if c.Host == nil && changed.Binding.Result != vpcport.Bound {
		return changed, nil
	}
	return p.Get(ctx, changed.ID)
}

// maxFilter is the maximum number of values in a list of a filter.
const maxFilter = 100

// Get implements vpcport.Provider.
func (p *Provider) Get(ctx context.Context, id string) (vpcport.Port, error) {
	r := rest.OfPort(api, http.MethodGet, id)
	r.Query = url.Values{"fields": portFields}
	return p.one(ctx, id, r)
}

// one makes a request whose reply is one port.
func (p *Provider) one(ctx context.Context, id string, r rest.Request) (vpcport.Port, error) {
	if err := rest.CheckID(r.Op(), id); err != nil {
		return vpcport.Port{}, err
	}
	var reply struct {
		Port *wirePort `json:"port"`
	}
	if err := p.call(ctx, r, &reply); err != nil {
		return vpcport.Port{}, err
	}
	if reply.Port == nil || reply.Port.ID != id {
		return vpcport.Port{}, rest.BadReply(r.Op(), "requested port %s, got %+v", id, reply.Port)
	}
	return reply.Port.port(r.Op())
}

// Ports implements vpcport.Provider. It refuses ports that do not match what was sent.
func (p *Provider) Ports(ctx context.Context, f vpcport.Filter) ([]vpcport.Port, error) {
	const op = "Neutron GET ports"
	return rest.List{Op: op, Filter: f, MaxFilter: maxFilter, MACs: true, Read: func(query url.Values) (out []vpcport.Port, err error) {
		query["fields"] = portFields
		found, err := pages(ctx, p, "ports", query, func(w wirePort) string { return w.ID })
		if err != nil {
			return nil, err
		}
		for _, w := range found {
			if !answers(w, query) {
				return nil, rest.BadReply(op, "port %s of device %q and owner %q in network %q does not match the filter", w.ID, w.Device, w.Owner, w.Network)
			}
			port, err := w.port(op)
			if err != nil {
				return nil, err
			}
			out = append(out, port)
		}
		return out, nil
	}}.Ports()
}

// answers reports whether a port matches what was sent to Neutron.
func answers(w wirePort, sent url.Values) bool {
	for name, value := range map[string]string{"id": w.ID, "device_id": w.Device, "mac_address": strings.ToLower(w.MAC), "network_id": w.Network, "device_owner": w.Owner} {
		if sent.Has(name) && !slices.Contains(sent[name], value) {
			return false
		}
	}
	return true
}

// Bounds of a listing: the items of a page, and of all pages. Neutron may have smaller pages
// (pagination_max_limit).
const (
	pageSize = 500
	maxItems = 200_000
)

// pages lists a collection page by page. It requests the next page by the last item, not by the link in
// the reply: the link would send the token to its host, which may be an internal name.
func pages[T any](ctx context.Context, p *Provider, collection string, query url.Values, id func(T) string) ([]T, error) {
	r := rest.Request{API: api, Method: http.MethodGet, Path: collection, Query: maps.Clone(query)}
	r.Query.Set("limit", strconv.Itoa(pageSize))
	r.Query.Set("sort_key", "id")
	r.Query.Set("sort_dir", "asc")
	var out []T
	seen := map[string]bool{}
	for {
		var reply map[string]json.RawMessage
		if err := p.call(ctx, r, &reply); err != nil {
			return nil, err
		}
		var items []T
		var links []struct {
			Rel string `json:"rel"`
		}
		if raw, ok := reply[collection]; !ok || json.Unmarshal(raw, &items) != nil || items == nil { // null is no empty list
			return nil, rest.BadReply(r.Op(), "a page without %s", collection)
		}
		if raw, ok := reply[collection+"_links"]; ok && json.Unmarshal(raw, &links) != nil {
			return nil, rest.BadReply(r.Op(), "a page with invalid links")
		}
		news := 0
		for _, item := range items {
			if !seen[id(item)] {
				seen[id(item)] = true
				out = append(out, item)
				news++
			}
		}
		more := false
		for _, l := range links {
			more = more || l.Rel == "next"
		}
		switch {
		case !more || len(items) == 0:
			return out, nil
		case news == 0:
			return nil, rest.BadReply(r.Op(), "the same page again")
		case len(out) > maxItems:
			return nil, rest.BadReply(r.Op(), "more than %d %s", maxItems, collection)
		}
		r.Query.Set("marker", id(items[len(items)-1]))
	}
}
