package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/web"
)

// inspector serves the node's state to operators and tools. It changes nothing.
type inspector struct {
	attachments *attachments
	conditions  *conditions
	kernel      Kernel
	node        Node
	policies    Policies      // nil: the node enforces none
	views       chan struct{} // holds a token for each request about a pod or a connection
}

// document returns the current addresses of the node (proposal for the Amazon VPC CNI, "Troubleshooting").
func (i *inspector) document() introspect.Document {
	snap := i.attachments.source.Snapshot()
	doc := introspect.Document{
		InstanceID: i.attachments.store.Node().InstanceID, Node: i.node.NodeName, IPAM: i.node.IPAM, Version: version.String(), Time: i.attachments.clock.Now().UTC(),
		Allocated: allocated(i.attachments.store.Records()), Available: []introspect.Available{}, Cooling: []introspect.Cooling{},
		ENIs: []introspect.ENI{}, Pools: []introspect.Pool{}, Blocks: []introspect.Block{},
		NICs: nics(i.attachments.store.Records()), Conditions: []introspect.Condition{}, LastError: snap.LastError,
	}
	doc.Totals = totals(snap)
	describeAddresses(&doc, snap.Addresses, i.attachments.source.CoolingPeriod())
	if snap.Detail != nil {
		snap.Detail.Describe(&doc)
	}
	for _, c := range i.conditions.all() {
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

// allocated lists the addresses of leases.
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

// addressOf describes the attachment's own interface, whose address comes from the lease, from the NIC
// with its name, or from another network's plugin.
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

// nics lists the NICs of attachments.
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

// egressOf describes the egress of an attachment. It returns nil if there is none.
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

func (i *inspector) serveDocument(w http.ResponseWriter, _ *http.Request) {
	web.WriteJSON(w, i.document())
}

const (
	// podViews is the number of concurrent requests about pods; further ones are rejected. Each costs
	// some netlink calls.
	podViews = 4
	// podViewTimeout bounds one request, including the wait for a container's lock.
	podViewTimeout = 5 * time.Second
	// podViewAttachments is the maximum number of a pod's attachments that are compared with the kernel. Two
	// sandboxes of a pod may overlap briefly; a hundred would be a bug.
	podViewAttachments = 8
)

// podView describes a pod on this node, and compares its attachments with the kernel.
func (i *inspector) podView(ctx context.Context, namespace, name string) introspect.Pod {
	view := introspect.Pod{
		Namespace: namespace, Name: name, Node: i.node.NodeName, Time: i.attachments.clock.Now().UTC(),
		Attachments: []introspect.Attachment{}, Waiting: i.attachments.acquirer.waits.of(namespace, name, i.attachments.acquirer.why),
	}
	var mine []attachment.Record
	for _, rec := range i.attachments.store.Records() {
		if rec.Pod.Namespace == namespace && rec.Pod.Name == name {
			mine = append(mine, rec)
		}
	}
	slices.SortFunc(mine, func(a, b attachment.Record) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Key.String(), b.Key.String()))
	})
	for n, rec := range mine {
		a := introspect.Attachment{
			Allocated: addressOf(rec), NICs: nics([]attachment.Record{rec}), Egress: egressOf(rec),
			State: string(rec.State), HostLink: rec.HostLink, MTU: rec.MTU, Rules: []string{},
		}
		if first := rec.First(); first != nil {
			a.HostLink, a.MTU = first.HostLink, first.MTU
		}
		if n < podViewAttachments {
			i.lookAt(ctx, rec, &a)
		}
		view.Attachments = append(view.Attachments, a)
	}
	return view
}

// lookAt compares a record with the kernel, like check.
func (i *inspector) lookAt(ctx context.Context, rec attachment.Record, a *introspect.Attachment) {
	var err error
	if !rec.Lease.Empty() {
		var rules []string
		if rules, err = i.kernel.PodRules(ctx, rec.Lease.Uplink, rec.Lease.Held()); err == nil {
			a.Rules = append(a.Rules, rules...)
		}
	}
	if rec.State != attachment.Ready {
		return
	}
	unlock, lockErr := i.attachments.locks.lock(ctx, rec.Key.ContainerID)
	if lockErr != nil {
		a.Fault = "not compared with the kernel: another call about the container is in progress"
		return
	}
	defer unlock()
	if now, ok := i.attachments.store.Get(rec.Key); !ok || now.State != attachment.Ready {
		a.State = "releasing" // the record may have changed
		return
	}
	a.Checked = true
	if err := cmp.Or(i.attachments.wiring.check(ctx, rec), err); err != nil {
		a.Fault = err.Error()
	}
}

// servePod serves introspect.PodPath.
func (i *inspector) servePod(w http.ResponseWriter, r *http.Request) {
	pod := attachment.Pod{Namespace: r.URL.Query().Get("namespace"), Name: r.URL.Query().Get("name")}
	if err := checkPod(pod); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if pod.Name == "" {
		http.Error(w, "name is empty, expected that of a pod", http.StatusBadRequest)
		return
	}
	if !i.enter(w) {
		return
	}
	defer i.leave()
	ctx, cancel := context.WithTimeout(r.Context(), podViewTimeout)
	defer cancel()
	web.WriteJSON(w, i.podView(ctx, pod.Namespace, pod.Name))
}

// enter admits a request that costs more than a few others at a time may. If it returns true, leave has to be called.
func (i *inspector) enter(w http.ResponseWriter) bool {
	select {
	case i.views <- struct{}{}:
		return true
	default:
		http.Error(w, "too many requests about pods at a time; try again", http.StatusServiceUnavailable)
		return false
	}
}

func (i *inspector) leave() { <-i.views }

// servePolicies serves introspect.NetworkPoliciesPath.
func (i *inspector) servePolicies(w http.ResponseWriter, _ *http.Request) {
	doc := introspect.NetworkPolicies{Time: i.attachments.clock.Now().UTC(), Attachments: []introspect.PolicyAttachment{}, Policies: []introspect.NodePolicy{}, Sets: []introspect.PolicySet{}, Denied: []introspect.DeniedPackets{}}
	if i.policies != nil {
		if !i.enter(w) {
			return
		}
		defer i.leave()
		doc = i.policies.Status(doc.Time)
	}
	doc.Node = i.node.NodeName
	web.WriteJSON(w, doc)
}

// serveJudgement serves introspect.PolicyJudgePath.
func (i *inspector) serveJudgement(w http.ResponseWriter, r *http.Request) {
	f, err := flowOf(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	j := introspect.PolicyJudgement{Time: i.attachments.clock.Now().UTC(), Egress: introspect.PolicyDecision{Allowed: true}, Ingress: introspect.PolicyDecision{Allowed: true}}
	if i.policies != nil {
		if !i.enter(w) {
			return
		}
		defer i.leave()
		j = i.policies.Judge(f)
	}
	j.Node = i.node.NodeName
	web.WriteJSON(w, j)
}

// flowOf reads the query of a judgement.
func flowOf(q url.Values) (f policy.Flow, err error) {
	for name, addr := range map[string]*netip.Addr{"source": &f.Source, "destination": &f.Destination} {
		if *addr, err = netip.ParseAddr(q.Get(name)); err != nil {
			return f, fmt.Errorf("%s is %q, expected an IP address", name, q.Get(name))
		}
		*addr = addr.Unmap()
	}
	protocol, err := strconv.ParseUint(q.Get("protocol"), 10, 8)
	if err != nil {
		return f, fmt.Errorf("protocol is %q, expected a number from 0 to 255", q.Get("protocol"))
	}
	port, err := strconv.ParseUint(cmp.Or(q.Get("port"), "0"), 10, 16)
	if err != nil {
		return f, fmt.Errorf("port is %q, expected a number from 0 to 65535", q.Get("port"))
	}
	f.Protocol, f.Port = uint8(protocol), uint16(port)
	return f, nil
}
