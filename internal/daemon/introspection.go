package daemon

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/introspect"
	"github.com/berthnet/berth/internal/source"
)

// document describes the node's addresses now (document 000, "Troubleshooting").
func (d *Daemon) document() introspect.Document {
	snap := d.Source.Snapshot()
	doc := introspect.Document{
		InstanceID: d.Store.Node().InstanceID, Node: d.NodeName, IPAM: d.IPAM, Time: d.Clock.Now().UTC(),
		Allocated: d.allocated(), Available: []introspect.Available{}, Cooling: []introspect.Cooling{},
		ENIs: []introspect.ENI{}, Pools: describePools(snap), Blocks: describeBlocks(snap),
		Conditions: []introspect.Condition{}, LastError: snap.LastError,
	}
	doc.Totals = totals(snap)
	d.describeAddresses(&doc, snap)
	describeENIs(&doc, snap)
	for _, c := range d.conditions.all() {
		status := introspect.False
		if c.Healthy {
			status = introspect.True
		}
		doc.Conditions = append(doc.Conditions, introspect.Condition{
			Type: c.Type, Status: status, Reason: c.Reason, Message: c.Message, Since: c.Since.UTC(),
		})
	}
	return doc
}

func totals(snap source.Snapshot) introspect.Totals {
	count := countAddresses(snap)
	t := introspect.Totals{
		Allocated: count[source.Used], Available: count[source.Warm], Cooling: count[source.Cooling],
		NotReady: count[source.NotReady], Withdrawn: count[source.Withdrawn], Waiting: snap.Waiting,
	}
	for _, g := range snap.Groups {
		t.Capacity += g.Capacity
	}
	return t
}

// isBlock tells a block from an ENI.
func isBlock(g source.GroupInfo) bool { return g.Pool != "" }

func (d *Daemon) allocated() []introspect.Allocated {
	out := []introspect.Allocated{}
	for _, rec := range d.Store.Records() {
		a := introspect.Allocated{
			Address: rec.Lease.IPv4, IPv6: rec.Lease.IPv6,
			Namespace: rec.Pod.Namespace, Pod: rec.Pod.Name, UID: rec.Pod.UID,
			ContainerID: rec.Key.ContainerID, Network: rec.Key.Network, Interface: rec.Key.IfName,
			ENI: rec.Lease.ENI, DeviceIndex: rec.Lease.DeviceIndex, Pool: rec.Lease.Pool, Block: rec.Lease.Block,
			Since: rec.Since,
		}
		if !a.Address.IsValid() {
			a.Address, a.IPv6 = a.IPv6, netip.Addr{}
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b introspect.Allocated) int { return a.Address.Compare(b.Address) })
	return out
}

func (d *Daemon) describeAddresses(doc *introspect.Document, snap source.Snapshot) {
	pools := map[string]string{} // of blocks
	for _, g := range snap.Groups {
		if isBlock(g) {
			pools[g.ID] = g.Pool
		}
	}
	for _, a := range snap.Addresses {
		eni, block, pool := a.Group, "", pools[a.Group]
		if pool != "" {
			eni, block = "", a.Group
		}
		switch a.State {
		case source.Warm:
			doc.Available = append(doc.Available, introspect.Available{Address: a.Addr, ENI: eni, Prefix: a.Prefix, Pool: pool, Block: block})
		case source.Cooling:
			until := a.Since.Add(d.Source.CoolingPeriod())
			doc.Cooling = append(doc.Cooling, introspect.Cooling{
				Address: a.Addr, ENI: eni, Pool: pool, Block: block, Since: a.Since.UTC(), Until: until.UTC(),
				RemainingSeconds: max(0, until.Sub(doc.Time).Round(time.Millisecond)).Seconds(),
			})
		}
	}
	slices.SortFunc(doc.Available, func(a, b introspect.Available) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(doc.Cooling, func(a, b introspect.Cooling) int { return a.Address.Compare(b.Address) })
}

func describeENIs(doc *introspect.Document, snap source.Snapshot) {
	for _, g := range snap.Groups {
		if isBlock(g) {
			continue
		}
		eni := introspect.ENI{
			ID: g.ID, DeviceIndex: g.DeviceIndex, Primary: g.Primary, MAC: g.MAC, Subnet: g.Subnet,
			Ready: g.Ready, Reason: g.Reason, Capacity: g.Capacity,
		}
		prefixes := map[netip.Prefix]bool{}
		for _, a := range snap.Addresses {
			if a.Group != g.ID {
				continue
			}
			if a.State == source.Used {
				eni.Used++
			}
			if a.Prefix.IsValid() {
				prefixes[a.Prefix] = true
			}
		}
		eni.Prefixes = len(prefixes)
		doc.ENIs = append(doc.ENIs, eni)
	}
	slices.SortFunc(doc.ENIs, func(a, b introspect.ENI) int { return cmp.Compare(a.DeviceIndex, b.DeviceIndex) })
}

func describePools(snap source.Snapshot) []introspect.Pool {
	out := []introspect.Pool{}
	for _, p := range snap.Pools {
		out = append(out, introspect.Pool{
			Name: p.Name, Blocks: p.Blocks, Draining: p.Draining, Used: p.Used, Cooling: p.Cooling, Free: p.Free,
			Waiting: p.Waiting, Requests: p.Requests, Failed: p.Failed, Exhausted: p.Exhausted,
		})
	}
	slices.SortFunc(out, func(a, b introspect.Pool) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// describeBlocks counts what is used and what cools; the rest of a block is
// free, also what a snapshot does not list.
func describeBlocks(snap source.Snapshot) []introspect.Block {
	type held struct{ used, cooling int }
	blocks := map[string]held{}
	for _, a := range snap.Addresses {
		h := blocks[a.Group]
		switch a.State {
		case source.Used:
			h.used++
		case source.Cooling:
			h.cooling++
		}
		blocks[a.Group] = h
	}
	out := []introspect.Block{}
	for _, g := range snap.Groups {
		if !isBlock(g) {
			continue
		}
		h := blocks[g.ID]
		out = append(out, introspect.Block{
			Name: g.ID, Pool: g.Pool, Prefixes: g.Prefixes, Ready: g.Ready, Reason: g.Reason, Capacity: g.Capacity,
			Used: h.used, Cooling: h.cooling, Free: g.Capacity - h.used - h.cooling,
		})
	}
	slices.SortFunc(out, func(a, b introspect.Block) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (d *Daemon) serveDocument(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(d.document()) // the reader went away
}
