package alcorfake

import (
	"net/http"
	"net/netip"
	"slices"
)

// post creates all ports of a request, or none.
func (a *api) post(r *http.Request, project string, bulk bool, body []byte) reply {
	name := map[bool]string{false: "port", true: "ports"}[bulk]
	list, ignored, e := decode(body, name, bulk)
	a.ignored = append(a.ignored, ignored...)
	if e == nil && !bulk && (list[0].Network == nil || *list[0].Network == "") {
		e = errNetworkID
	}
	for _, b := range list {
		if e == nil {
			e = b.check()
		}
	}
	var made []*Port
	if e == nil {
		made, e = a.create(project, list)
	}
	if e != nil {
		return a.refused(r, e)
	}
	if !bulk {
		return jsonReply(201, map[string]any{"port": a.described(made[0])})
	}
	out := []entity{}
	for _, p := range made {
		out = append(out, a.described(p))
	}
	return jsonReply(201, map[string]any{"ports": out})
}

func (a *api) create(project string, list []*entity) ([]*Port, *refusal) {
	var made []*Port
	taken := map[netip.Addr]bool{}
	for _, b := range list {
		p, e := a.newPort(project, b, taken)
		if e != nil {
			return nil, e
		}
		made = append(made, p)
	}
	a.mixUp(list, made)
	for _, p := range made {
		a.ports.byID[p.ID] = p
	}
	a.ports.tell()
	return made, nil
}

func (a *api) newPort(project string, b *entity, taken map[netip.Addr]bool) (*Port, *refusal) {
	if b.Network == nil {
		return nil, errNull // the bulk request's controller does not check
	}
	if _, ok := a.networks.byID[*b.Network]; !ok {
		return nil, errNetwork
	}
	p := &Port{Network: *b.Network, Project: project, Created: a.clock.Now()}
	if e := a.apply(p, b); e != nil {
		return nil, e
	}
	var e *refusal
	if p.FixedIPs, e = a.allocate(p.Network, b.FixedIPs, taken); e != nil {
		return nil, e
	}
	switch {
	case b.MAC == nil:
		p.MAC = a.ports.newMAC()
	case a.ports.macTaken(*b.MAC):
		return nil, a.errNotUnique()
	default:
		p.MAC = *b.MAC
	}
	if p.ID = a.ports.newID(); b.ID != nil {
		p.ID = *b.ID
	}
	return p, nil
}

// mixUp reproduces two bugs of Alcor. All addresses of a subnet in the request become the last one chosen
// (FixedIpsProcessor.allocateFixedIpAddress ignores the port), and all ports without a MAC address get
// the first one chosen (MacProcessor.allocateRandomMacAddressCallback does not count).
func (a *api) mixUp(list []*entity, made []*Port) {
	chosen := map[string]netip.Addr{}
	mac := ""
	for i, b := range list {
		if b.MAC == nil && mac == "" {
			mac = made[i].MAC
		}
		if b.MAC == nil {
			made[i].MAC = mac
		}
		if b.FixedIPs == nil {
			continue
		}
		for n, f := range *b.FixedIPs {
			if f.Subnet != nil && f.IP == nil {
				chosen[*f.Subnet] = made[i].FixedIPs[n].IP
			}
		}
	}
	for i, b := range list {
		if b.FixedIPs == nil {
			continue
		}
		for n, f := range *b.FixedIPs {
			if f.Subnet != nil && chosen[*f.Subnet].IsValid() {
				made[i].FixedIPs[n].IP = chosen[*f.Subnet]
			}
		}
	}
}

// apply changes a port as requested, except for its addresses. Null leaves a field unchanged.
func (a *api) apply(p *Port, b *entity) *refusal {
	if b.Groups != nil {
		for _, g := range *b.Groups {
			if !a.networks.groups[g] {
				return errGroup
			}
		}
	}
	if b.Host != nil { // "" is looked up too
		h, ok := a.networks.hosts[*b.Host]
		if !ok {
			return errNode
		}
		p.Status = "PENDING"
		if h.Fails {
			p.Status = "FAILED"
		}
		p.Host = *b.Host
		p.Generation++
	}
	if b.Groups != nil {
		p.Groups = slices.Clone(*b.Groups)
	}
	if b.Tags != nil {
		p.Tags = slices.Clone(*b.Tags)
	}
	for to, value := range map[*string]*string{&p.Name: b.Name, &p.Device: b.Device, &p.Owner: b.Owner} {
		if value != nil {
			*to = *value
		}
	}
	p.Unsecured = b.Security != nil && !*b.Security // the default is true
	return nil
}

// put changes a port of any project. The reply repeats the request.
func (a *api) put(r *http.Request, _, id string, body []byte) reply {
	list, ignored, e := decode(body, "port", false)
	a.ignored = append(a.ignored, ignored...)
	if e == nil {
		e = list[0].check()
	}
	p := a.ports.byID[id]
	if e == nil && p == nil {
		e = errPort
	}
	if e != nil {
		return a.refused(r, e)
	}
	b := list[0]
	now := p.copied()
	if b.Host == nil && p.Host != "" { // Alcor looks up the previous host again
		if _, ok := a.networks.hosts[p.Host]; !ok {
			return a.refused(r, errNode)
		}
	}
	if e := a.apply(&now, b); e != nil {
		return a.refused(r, e)
	}
	*p = now
	a.ports.tell()
	return jsonReply(200, map[string]any{"port": b})
}

// remove deletes a port. Alcor fails if it does not find the port's host.
func (a *api) remove(id string) *refusal {
	p := a.ports.byID[id]
	if p == nil {
		return errPort
	}
	if _, ok := a.networks.hosts[p.Host]; !ok && p.Host != "" {
		return errNode
	}
	a.ports.drop(id)
	return nil
}
