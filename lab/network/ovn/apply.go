package ovn

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"slices"
)

// Priorities of rules, as in Neutron's OVN driver: packets that no group allows are dropped.
const (
	dropPriority  = "1001"
	allowPriority = "1002"
	dropGroup     = "pg_drop" // contains all ports
)

// Apply brings OVN to a desired state. It returns when OVN's northbound database contains it; nodes follow later.
func (v *OVN) Apply(ctx context.Context, s State) error {
	v.applying.Lock()
	defer v.applying.Unlock()
	// Removals come first, because ovn-nbctl rejects an address or a name that is still in use, even if the same
	// transaction removes its owner.
	if rest := v.applied.without(s); v.written {
		if err := v.write(ctx, changes(v.applied, rest, false)); err != nil {
			return err
		}
		v.applied = rest
	}
	if err := v.write(ctx, changes(v.applied, s, !v.written)); err != nil {
		return err
	}
	v.applied, v.written = s.clone(), true
	return nil
}

// write runs commands of ovn-nbctl, if any, in one transaction.
func (v *OVN) write(ctx context.Context, commands [][]string) error {
	if len(commands) == 0 {
		return nil
	}
	var args []string
	for i, c := range commands {
		if i > 0 {
			args = append(args, "--")
		}
		args = append(args, c...)
	}
	if err := v.nbctl(ctx, args...); err != nil {
		return fmt.Errorf("write networks and ports to OVN: %w", err)
	}
	return nil
}

// changes returns the commands of ovn-nbctl (ovn-nbctl(8)) that lead from one state to another in one transaction. The
// first ones create the objects that all ports share.
func changes(from, to State, first bool) [][]string {
	d := &diff{from: from, to: to, before: from.ports(), after: to.ports()}
	if first {
		d.do("pg-add", dropGroup)
		d.do("acl-add", dropGroup, "to-lport", dropPriority, "outport == @"+dropGroup+" && ip", "drop")
		d.do("acl-add", dropGroup, "from-lport", dropPriority, "inport == @"+dropGroup+" && ip", "drop")
	}
	d.groups()
	d.uplink()
	d.networks()
	d.ports()
	d.members(dropGroup, slices.Sorted(maps.Keys(d.before)), slices.Sorted(maps.Keys(d.after)))
	for _, g := range to.Groups {
		d.members(word(g.ID), from.members(g.ID), to.members(g.ID))
	}
	d.gone()
	return d.commands
}

// diff collects the changes from one state to another.
type diff struct {
	from, to      State
	before, after map[string]placed // port IDs
	commands      [][]string
}

func (d *diff) do(words ...string) { d.commands = append(d.commands, words) }

func (d *diff) groups() {
	for _, g := range d.to.Groups {
		old, there := d.from.group(g.ID)
		if !there {
			d.do("pg-add", word(g.ID))
		}
		if there && slices.Equal(old.Rules, g.Rules) {
			continue
		}
		d.do("acl-del", word(g.ID))
		for _, r := range g.Rules {
			d.do("--may-exist", "acl-add", word(g.ID), r.direction(), allowPriority, r.match(g.ID), "allow-related")
		}
	}
}

func (d *diff) networks() {
	for _, n := range d.to.Networks {
		old, there := d.from.network(n.ID)
		if !there {
			d.do("ls-add", n.ID)
		}
		if !old.sameRouter(n) {
			d.commands = append(d.commands, router(n)...)
		}
	}
}

func (d *diff) ports() {
	for _, id := range slices.Sorted(maps.Keys(d.before)) {
		if now, there := d.after[id]; !there || now.network != d.before[id].network {
			d.do("--if-exists", "lsp-del", id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(d.after)) {
		p, old := d.after[id], d.before[id]
		if old.network != p.network {
			d.do("lsp-add", p.network, id)
			old = placed{}
		}
		if old.addresses() != p.addresses() {
			d.do("lsp-set-addresses", id, p.addresses())
			d.do("lsp-set-port-security", id, p.addresses())
		}
		switch {
		case old.Host == p.Host:
		case p.Host == "":
			d.do("lsp-set-options", id)
		default:
			d.do("lsp-set-options", id, "requested-chassis="+p.Host)
		}
	}
}

// members sets the ports of a port group.
func (d *diff) members(group string, were, are []string) {
	switch {
	case slices.Equal(were, are):
	case len(are) == 0:
		d.do("clear", "Port_Group", group, "ports")
	default:
		d.do(append([]string{"pg-set-ports", group}, are...)...)
	}
}

// gone removes groups and networks.
func (d *diff) gone() {
	for _, g := range d.from.Groups {
		if _, there := d.to.group(g.ID); !there {
			d.do("pg-del", word(g.ID))
		}
	}
	for _, n := range d.from.Networks {
		if _, there := d.to.network(n.ID); !there {
			if n.Uplink.IsValid() {
				d.do("--if-exists", "lsp-del", n.ID+"-uplink")
			}
			d.do("--if-exists", "lr-del", n.ID+"-router")
			d.do("--if-exists", "ls-del", n.ID)
		}
	}
}

// router recreates a network's router, which has the gateways' addresses.
func router(n Network) [][]string {
	name, leg := n.ID+"-router", n.ID+"-gateway"
	commands := [][]string{{"--if-exists", "lsp-del", leg}, {"--if-exists", "lsp-del", n.ID + "-uplink"}, {"--if-exists", "lr-del", name}}
	if len(n.Gateways) == 0 {
		return commands
	}
	port := []string{"lrp-add", name, name + "-leg", routerMAC(n.ID)}
	for _, g := range n.Gateways {
		port = append(port, g.String())
	}
	commands = append(commands, []string{"lr-add", name}, port, []string{"lsp-add", n.ID, leg}, []string{"lsp-set-type", leg, "router"},
		[]string{"lsp-set-addresses", leg, "router"}, []string{"lsp-set-options", leg, "router-port=" + name + "-leg"})
	if n.Uplink.IsValid() {
		commands = append(commands, onUplink(n, name)...)
	}
	return commands
}

// routerMAC returns a locally administered MAC address for a network's router.
func routerMAC(network string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(network))
	n := h.Sum32()
	return net.HardwareAddr{0x0a, 0xfe, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}.String()
}
