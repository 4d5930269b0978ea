package neutronfake

import (
	"slices"
)

// create creates the ports of a request, all or none. The caller must hold the lock, as for all methods
// below.
func (a *api) create(who caller, bodies []*portBody) ([]*Port, *refusal) {
	more := map[string]int{} // by project; the quota is checked first
	for _, b := range bodies {
		of := b.project(who)
		if of == "" {
			return nil, badRequest("Running without keystone AuthN requires that tenant_id is specified")
		}
		if more[of]++; a.quota >= 0 && a.ports.portsOf(of)+more[of] > a.quota {
			return nil, refuse(409, "OverQuota", "Quota exceeded for resources: ['port'].")
		}
	}
	var made []*Port
	for _, b := range bodies {
		p, err := a.createOne(who, b)
		if err != nil {
			for _, undone := range made {
				a.ports.drop(undone.ID)
			}
			return nil, err
		}
		made = append(made, p)
	}
	return made, nil
}

func (a *api) createOne(who caller, b *portBody) (*Port, *refusal) {
	if who.admin && b.FixedIPs != nil && len(*b.FixedIPs) > 0 && len(a.networks.subnetsOf(*b.Network)) == 0 {
		// For administrators, ML2's bulk creation checks addresses before the network.
		return nil, refuse(400, "InvalidInput", "Invalid input for operation: IP allocation requires subnets for network.")
	}
	n, err := a.networks.network(who, *b.Network)
	if err != nil {
		return nil, err
	}
	p := &Port{Network: n.ID, Project: b.project(who), Created: a.clock.Now(), Status: "DOWN", VIF: VIF{Type: "unbound", Details: map[string]any{}}}
	b.copyTo(p)
	if p.FixedIPs, err = a.addresses(n.ID, b.FixedIPs); err != nil {
		return nil, err
	}
	switch {
	case b.MAC == nil:
		p.MAC = a.ids.newMAC()
	case a.ports.macs[onNetwork(n.ID, p.MAC)] > 0:
		return nil, refuse(409, "MacAddressInUse", "Unable to complete operation for network %s. The mac address %s is in use.", n.ID, p.MAC)
	}
	if err := a.networks.groupsFor(p, b.Groups); err != nil {
		return nil, err
	}
	p.ID = a.ids.newID()
	if b.Host != nil && *b.Host != "" {
		p.Host = *b.Host
		a.hosts.bind(p, true)
	}
	a.ports.enter(p)
	return p, nil
}

// groupsFor sets the security groups of a port: the requested ones, or the project's default.
func (ns *networks) groupsFor(p *Port, want *[]string) *refusal {
	if want == nil {
		p.Groups = []string{ns.defaultGroup(p.Project)}
		return nil
	}
	for _, g := range *want {
		if _, ok := ns.groups[g]; !ok {
			return refuse(404, "SecurityGroupNotFound", "Security group %s does not exist", g)
		}
	}
	p.Groups = slices.Clone(*want)
	return nil
}

func (ns *networks) defaultGroup(project string) string {
	for id, g := range ns.groups {
		if g.Project == project && g.Name == "default" {
			return id
		}
	}
	id := ns.ids.newID()
	ns.groups[id] = Group{ID: id, Name: "default", Project: project, Rules: defaultRules(id)}
	return id
}

// update changes a port if it has the given revision; -1 matches any. Every request makes a new revision,
// even one that changes nothing: then the reply does not show it (late). A binding makes two revisions,
// of which the second is late (observed with Neutron 21.0).
func (a *api) update(p *Port, revision int, b *portBody) (late bool, err *refusal) {
	if revision >= 0 && revision != p.Revision {
		return false, refuse(412, "RevisionNumberConstraintFailed", "Constrained to %d, but current revision is %d", revision, p.Revision)
	}
	failed := p.VIF.Type == "binding_failed"
	touched := b.Name != nil || b.Device != nil || b.Owner != nil || b.AdminUp != nil
	if b.Groups != nil {
		had := p.Groups
		if err := a.networks.groupsFor(p, b.Groups); err != nil {
			return false, err
		}
		touched = touched || !slices.Equal(slices.Sorted(slices.Values(had)), slices.Sorted(slices.Values(p.Groups)))
	}
	b.copyTo(p)
	moved := b.Host != nil && *b.Host != p.Host
	if moved {
		p.Host = *b.Host
	}
	a.hosts.bind(p, moved)
	binds := p.Host != "" && (moved || failed)
	if binds || touched {
		a.ports.change(p, func() {})
	}
	return binds || !touched, nil
}

func (ns *networks) network(who caller, id string) (Network, *refusal) {
	if !uuid(id) {
		return Network{}, badRequest("Invalid input for network_id. Reason: '%s' is not a valid UUID.", id)
	}
	n, ok := ns.byID[id]
	if !ok || !who.sees(n.Project) && !n.Shared {
		return n, refuse(404, "NetworkNotFound", "Network %s could not be found.", id)
	}
	return n, nil
}

func (ps *ports) portsOf(project string) (n int) {
	for _, p := range ps.byID {
		if p.Project == project {
			n++
		}
	}
	return n
}
