package daemon

import (
	"cmp"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/web"
)

// document describes the node's addresses now (proposal for the Amazon VPC CNI, "Troubleshooting").
func (d *Daemon) document() introspect.Document {
	snap := d.Source.Snapshot()
	doc := introspect.Document{
		InstanceID: d.Store.Node().InstanceID, Node: d.NodeName, IPAM: d.IPAM, Version: version.String(), Time: d.Clock.Now().UTC(),
		Allocated: allocated(d.Store.Records()), Available: []introspect.Available{}, Cooling: []introspect.Cooling{},
		ENIs: []introspect.ENI{}, Pools: []introspect.Pool{}, Blocks: []introspect.Block{},
		NICs: nics(d.Store.Records()), Conditions: []introspect.Condition{}, LastError: snap.LastError,
	}
	doc.Totals = totals(snap)
	describeAddresses(&doc, snap.Addresses, d.Source.CoolingPeriod())
	if snap.Detail != nil {
		snap.Detail.Describe(&doc)
	}
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
	count := snap.Count
	t := introspect.Totals{
		Allocated: count[source.Used], Available: count[source.Warm], Cooling: count[source.Cooling],
		NotReady: count[source.NotReady], Withdrawn: count[source.Withdrawn], Waiting: snap.Waiting,
	}
	for _, g := range snap.Groups {
		t.Capacity += g.Capacity
	}
	return t
}

// allocated are the addresses of leases.
func allocated(records []attachment.Record) []introspect.Allocated {
	out := []introspect.Allocated{}
	for _, rec := range records {
		if !rec.Lease.Empty() {
			out = append(out, addressOf(rec))
		}
	}
	slices.SortFunc(out, func(a, b introspect.Allocated) int { return a.Address.Compare(b.Address) })
	return out
}

// addressOf is the address of an attachment's own interface: of the lease, of the NIC of its
// name, or of another network's plugin.
func addressOf(rec attachment.Record) introspect.Allocated {
	a := introspect.Allocated{
		Address: rec.Lease.IPv4, IPv6: rec.Lease.IPv6, NodeLocal: rec.Lease.NodeLocal,
		Namespace: rec.Pod.Namespace, Pod: rec.Pod.Name, UID: rec.Pod.UID,
		ContainerID: rec.Key.ContainerID, Network: rec.Key.Network, Interface: rec.Key.IfName,
		Origin: rec.Lease.Origin, DeviceIndex: rec.Lease.Uplink, Since: rec.Since,
	}
	for _, one := range rec.OwnAddrs() {
		of := &a.IPv6
		if one.Is4() {
			of = &a.Address
		}
		if !of.IsValid() {
			*of = one
		}
	}
	if !a.Address.IsValid() {
		a.Address, a.IPv6 = a.IPv6, netip.Addr{}
	}
	return a
}

// nics are those of all attachments.
func nics(records []attachment.Record) []introspect.NIC {
	out := []introspect.NIC{}
	for _, rec := range records {
		for _, n := range rec.NICs {
			one := introspect.NIC{
				Namespace: rec.Pod.Namespace, Pod: rec.Pod.Name, ContainerID: rec.Key.ContainerID, Network: rec.Key.Network,
				Interface: n.IfName, PodNIC: n.Object, Port: n.Port, MAC: n.MAC.String(), MTU: n.MTU,
				DefaultRoute: n.DefaultRoute, Plug: n.Plug.Type, HostLink: n.HostLink, State: string(n.State), Binding: n.Binding,
			}
			for _, a := range n.Addresses {
				one.Addresses = append(one.Addresses, a.CIDR)
			}
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b introspect.NIC) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.Interface, b.Interface))
	})
	return out
}

// egressOf is what an attachment has of egress; nil: nothing.
func egressOf(rec attachment.Record) *introspect.Egress {
	if rec.Egress == nil {
		return nil
	}
	out := &introspect.Egress{Forward: rec.Egress.Forward, State: string(rec.Egress.State), Egresses: []introspect.UsedEgress{}}
	for _, e := range rec.Egress.Egresses {
		used := introspect.UsedEgress{
			Namespace: e.Namespace, Name: e.Name, Destinations: e.Destinations, Service: e.Service,
			SourcePortAuto: e.SourcePortAuto, OriginatingOnly: e.OriginatingOnly, Gateways: []introspect.EgressGateway{},
		}
		for _, g := range e.Gateways {
			used.Gateways = append(used.Gateways, introspect.EgressGateway{ID: g.ID, UID: g.UID, Addresses: g.Addresses, Ending: g.Ending, Chosen: g.Chosen})
		}
		out.Egresses = append(out.Egresses, used)
	}
	return out
}

func describeAddresses(doc *introspect.Document, addresses []source.AddressInfo, cooling time.Duration) {
	for _, a := range addresses {
		switch a.State {
		case source.Warm:
			doc.Available = append(doc.Available, introspect.Available{Address: a.Addr, Origin: a.Origin, Prefix: a.Prefix})
		case source.Cooling:
			until := a.Since.Add(cooling)
			doc.Cooling = append(doc.Cooling, introspect.Cooling{
				Address: a.Addr, Origin: a.Origin, Since: a.Since.UTC(), Until: until.UTC(),
				RemainingSeconds: max(0, until.Sub(doc.Time).Round(time.Millisecond)).Seconds(),
			})
		}
	}
	slices.SortFunc(doc.Available, func(a, b introspect.Available) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(doc.Cooling, func(a, b introspect.Cooling) int { return a.Address.Compare(b.Address) })
}

func (d *Daemon) serveDocument(w http.ResponseWriter, _ *http.Request) {
	web.WriteJSON(w, d.document())
}
