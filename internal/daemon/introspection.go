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
		ENIs: []introspect.ENI{}, Conditions: []introspect.Condition{}, LastError: snap.LastError,
	}
	d.describeAddresses(&doc, snap)
	d.describeENIs(&doc, snap)
	for _, c := range d.conditions.all() {
		status := introspect.False
		if c.Healthy {
			status = introspect.True
		}
		doc.Conditions = append(doc.Conditions, introspect.Condition{
			Type: c.Type, Status: status, Reason: c.Reason, Message: c.Message, Since: c.Since.UTC(),
		})
	}
	doc.Totals.Waiting = snap.Waiting
	return doc
}

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
	for _, a := range snap.Addresses {
		switch a.State {
		case source.Used:
			doc.Totals.Allocated++
		case source.Warm:
			doc.Totals.Available++
			doc.Available = append(doc.Available, introspect.Available{Address: a.Addr, ENI: a.Group, Prefix: a.Prefix})
		case source.Cooling:
			doc.Totals.Cooling++
			until := a.Since.Add(d.Source.CoolingPeriod())
			doc.Cooling = append(doc.Cooling, introspect.Cooling{
				Address: a.Addr, ENI: a.Group, Since: a.Since.UTC(), Until: until.UTC(),
				RemainingSeconds: max(0, until.Sub(doc.Time).Round(time.Millisecond)).Seconds(),
			})
		case source.NotReady:
			doc.Totals.NotReady++
		case source.Withdrawn:
			doc.Totals.Withdrawn++
		}
	}
	slices.SortFunc(doc.Available, func(a, b introspect.Available) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(doc.Cooling, func(a, b introspect.Cooling) int { return a.Address.Compare(b.Address) })
}

func (d *Daemon) describeENIs(doc *introspect.Document, snap source.Snapshot) {
	for _, g := range snap.Groups {
		doc.Totals.Capacity += g.Capacity
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

func (d *Daemon) serveDocument(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(d.document()) // the reader went away
}
