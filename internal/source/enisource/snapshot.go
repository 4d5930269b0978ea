package enisource

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// Snapshot implements source.Source.
func (s *Source) Snapshot() source.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := source.Snapshot{Waiting: s.addresses.waiters.Len(), LastError: s.supply.LastError(), Conditions: s.conditions()}
	seen := map[netip.Addr]bool{}
	for v := range s.addresses.alloc.Addresses() {
		seen[v.Addr] = true
		if !v.Used && !v.Cooling && !s.addresses.inv.Families.Has(ipfamily.Of(v.Addr)) {
			continue // no pod gets it any longer
		}
		out.Addresses = append(out.Addresses, source.Info(v, introspect.Origin{ENI: v.Group}))
	}
	for _, id := range sortedIDs(s.addresses.enis.published) {
		for _, a := range pending(s.addresses.enis.published[id], seen) {
			if s.addresses.inv.Families.Has(ipfamily.Of(a.Addr)) {
				out.Addresses = append(out.Addresses, a)
			}
		}
	}
	slices.SortFunc(out.Addresses, func(x, y source.AddressInfo) int { return x.Addr.Compare(y.Addr) })
	var enis []introspect.ENI
	for _, e := range s.addresses.inv.ENIs {
		enis = append(enis, s.describe(e))
	}
	slices.SortFunc(enis, func(x, y introspect.ENI) int {
		return cmp.Or(cmp.Compare(x.DeviceIndex, y.DeviceIndex), cmp.Compare(x.ID, y.ID))
	})
	for _, e := range enis {
		out.Groups = append(out.Groups, source.Group{Name: e.ID, Uplink: e.DeviceIndex, Capacity: e.Capacity})
	}
	out.Count, out.Detail = s.addresses.count(out.Addresses), detail{s.supply.Template(), enis, out.Addresses, s.cutOffs.count()}
	return out
}

// count returns the number of listed addresses by state. A pod's addresses of both families count once,
// and free addresses by the number of pods that they suffice for.
func (a *addresses) count(listed []source.AddressInfo) map[source.State]int {
	var of [ipfamily.Number][]source.AddressInfo
	for _, info := range listed {
		f := ipfamily.Of(info.Addr)
		of[f] = append(of[f], info)
	}
	count := source.Count(of[ipfamily.IPv4])
	for state, n := range source.Count(of[ipfamily.IPv6]) {
		count[state] = max(count[state], n)
	}
	count[source.Used], count[source.Warm] = len(a.leases), a.room()
	return count
}

// detail is the introspection of the node's ENIs, by device index.
type detail struct {
	template  string           // template whose settings they have
	enis      []introspect.ENI // without their used addresses
	addresses []source.AddressInfo
	cutOff    map[string]int // number of pods, by cause
}

// Describe implements source.Detail.
func (d detail) Describe(doc *introspect.Document) {
	doc.Template = d.template
	used, prefixes := map[string]*[ipfamily.Number]int{}, map[string]map[netip.Prefix]bool{}
	for _, a := range d.addresses {
		if used[a.ENI] == nil {
			used[a.ENI] = &[ipfamily.Number]int{}
		}
		if a.State == source.Used {
			used[a.ENI][ipfamily.Of(a.Addr)]++
		}
		if a.Prefix.IsValid() && a.Prefix.Addr().Is4() {
			if prefixes[a.ENI] == nil {
				prefixes[a.ENI] = map[netip.Prefix]bool{}
			}
			prefixes[a.ENI][a.Prefix] = true
		}
	}
	for _, e := range d.enis {
		if n := used[e.ID]; n != nil { // a pod with an address of each family counts once
			e.Used = max(n[ipfamily.IPv4], n[ipfamily.IPv6])
		}
		e.Prefixes = len(prefixes[e.ID])
		doc.ENIs = append(doc.ENIs, e)
	}
}

// Metrics implements source.Detail.
func (d detail) Metrics() []prometheus.Metric {
	list := []prometheus.Metric{famENIs.Value(float64(len(d.enis)))}
	for _, cause := range []string{causeNoLink, causeDetached, causeUnassigned} {
		list = append(list, famCutOff.Value(float64(d.cutOff[cause]), cause))
	}
	return list
}

func (s *Source) describe(e eni.ENI) introspect.ENI {
	_, programmed := s.addresses.enis.programmed[e.ID]
	_, absent := s.addresses.enis.absent[e.ID]
	ready := programmed && !absent
	g := introspect.ENI{
		ID: e.ID, DeviceIndex: e.DeviceIndex, Primary: e.Primary, MAC: e.MAC.String(), Subnet: e.SubnetID,
		Ready: ready && e.Serves, Reason: s.addresses.enis.down[e.ID],
		Capacity: plan.Capacity(s.addresses.inv.Limits, ipam.Policy{Families: s.addresses.inv.Families, PrefixDelegation: s.supply.PrefixDelegation()}, e.Primary),
	}
	switch {
	case !e.Serves:
		g.Capacity, g.Reason = 0, "its device index is below first-interface-index"
	case !ready && g.Reason == "":
		g.Reason = "data path not programmed yet"
	}
	return g
}

// pending returns the addresses of an ENI that its data path does not have yet, without those of
// prefixes that are too large to list.
func pending(e eni.ENI, seen map[netip.Addr]bool) (out []source.AddressInfo) {
	add := func(a netip.Addr, p netip.Prefix) {
		if !seen[a] {
			out = append(out, source.AddressInfo{Addr: a, State: source.NotReady, Origin: introspect.Origin{ENI: e.ID}, Prefix: p})
		}
	}
	for _, a := range addressesOf(e) {
		add(a, netip.Prefix{})
	}
	for _, p := range e.Prefixes { // a /80 is not listed
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			add(a, p)
		}
	}
	return out
}

// Types of the conditions of ENIs and of the addresses of pods.
const (
	conditionLinks     = "ENILinksPresent"
	conditionAddresses = "PodAddressesAssigned"
	conditionGroups    = "SecurityGroupsFollowed"
	conditionActions   = "EC2ActionsAllowed"
)

// conditions returns the conditions of the source. s.mu is held.
func (s *Source) conditions() []source.Condition {
	links := source.Condition{Type: conditionLinks, Healthy: true, Reason: "Present"}
	var parts []string
	now := s.clock.Now()
	for _, id := range sortedIDs(s.addresses.enis.absent) {
		if s.addresses.enis.absent[id].reportedAt().After(now) {
			continue
		}
		part := id
		if e, ok := s.addresses.enis.published[id]; ok {
			part += fmt.Sprintf(" (device index %d, MAC address %s)", e.DeviceIndex, e.MAC)
		}
		parts = append(parts, part)
	}
	if len(parts) > 0 {
		links = source.Condition{Type: conditionLinks, Reason: "LinkMissing", Message: "the node has no link of " + strings.Join(parts, ", ") +
			": was the ENI detached, or its link moved to another network namespace or driver? None of its addresses is handed out until the link is back"}
	}
	addresses := source.Condition{Type: conditionAddresses, Healthy: true, Reason: "Assigned"}
	var lost []netip.Addr
	for _, addrs := range s.addresses.lost() {
		lost = append(lost, addrs...)
	}
	if slices.SortFunc(lost, netip.Addr.Compare); len(lost) > 0 {
		addresses = source.Condition{Type: conditionAddresses, Reason: "NotAssigned", Message: fmt.Sprintf(
			"%d addresses of running pods are no longer assigned to an ENI of this node, such as %s: delete these pods", len(lost), lost[0])}
	}
	all := []source.Condition{links, addresses}
	if s.opts.Permissions != nil {
		all = append(all, s.opts.Permissions.condition())
	}
	others, followed, compared := s.supply.OtherGroups()
	if !compared {
		return all
	}
	groups := source.Condition{Type: conditionGroups, Healthy: true, Reason: "Followed"}
	if len(others) > 0 {
		groups = source.Condition{Type: conditionGroups, Reason: "Pending", Message: "the security groups of " + strings.Join(others, ", ") +
			" are not those of the primary ENI yet: the log of berthd has why"}
		if !followed {
			groups.Reason, groups.Message = "NotFollowed", "the security groups of "+strings.Join(others, ", ")+
				" are not those of the primary ENI: change them at EC2, or set --follow-security-groups"
		}
	}
	return append(all, groups)
}

var (
	famENIs       = metric.New("berth_enis", "gauge", "ENIs of this node with addresses for pods, and the primary ENI.")
	famCutOff     = metric.New("berth_pods_cut_off", "gauge", "Running pods that are cut off, by cause: eni-link-missing (the node has no link of their ENI), eni-detached (it is not attached to the node) or address-unassigned (EC2 has taken their address from it).", "cause")
	famCalls      = metric.New("berth_ec2_calls_total", "counter", "Calls to EC2 by operation and code: EC2's error code, or OK.", "operation", "code")
	famCallTime   = metric.New("berth_ec2_call_duration_seconds", "histogram", "Duration of EC2 calls, without the wait for Berth's rate limiter.", "operation")
	famLimiter    = metric.New("berth_ec2_limiter_wait_seconds", "histogram", "Time that EC2 calls waited for Berth's rate limiter.", "operation")
	famOrphans    = metric.New("berth_orphan_enis", "gauge", "Detached ENIs of the cluster whose instances are gone, as this node last saw them, by state: waiting (not seen for --orphan-age yet), kept (one of their instances still exists) or refused (EC2 does not delete them).", "state")
	famCollected  = metric.New("berth_orphan_enis_deleted_total", "counter", "ENIs that this node deleted because their instances are gone.")
	famReconciles = metric.New("berth_reconciles_total", "counter", "Passes of the ENI reconciler by result: success, or the class of the last error.", "result")
)

// Reference is the part of the metrics reference for this source.
var Reference = source.Reference{
	Families: []metric.Family{famENIs, famCutOff, famCalls, famCallTime, famLimiter, famReconciles, famOrphans, famCollected},
	Conditions: [][2]string{
		{conditionLinks, "with addresses of ENIs, the node has the link of each ENI that carries pods"},
		{conditionAddresses, "with addresses of ENIs, each address of a running pod is assigned to an ENI of the node"},
		{conditionGroups, "in node mode, ENIs have the security groups of the primary ENI, unless others are configured"},
		{conditionActions, "in node mode, EC2 has rejected no action for lack of permission in the last hour, or has allowed it since"},
	},
}

// Metrics count node mode's calls to EC2. They are a pace.Observer.
type Metrics struct {
	calls      *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	wait       *prometheus.HistogramVec
	reconciles *prometheus.CounterVec
	orphans    *prometheus.GaugeVec
	collected  *prometheus.CounterVec
}

// NewMetrics creates and registers the metrics.
func NewMetrics(to prometheus.Registerer) Metrics {
	buckets := []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60} // seconds
	m := Metrics{famCalls.Counter(), famCallTime.Histogram(buckets), famLimiter.Histogram(buckets), famReconciles.Counter(), famOrphans.Gauge(), famCollected.Counter()}
	to.MustRegister(m.calls, m.duration, m.wait, m.reconciles, m.orphans, m.collected)
	return m
}

// Call counts one call to EC2 with its result code.
func (m Metrics) Call(operation, code string, took time.Duration) {
	m.calls.WithLabelValues(operation, code).Inc()
	m.duration.WithLabelValues(operation).Observe(took.Seconds())
}

// Limited records how long the limiter delayed one call.
func (m Metrics) Limited(operation string, waited time.Duration) {
	m.wait.WithLabelValues(operation).Observe(waited.Seconds())
}

// Reconciler returns the observer of one reconciler.
func (m Metrics) Reconciler() eni.Observer { return &passes{Metrics: m} }

// passes counts the passes of a reconciler. Its methods are called by one goroutine.
type passes struct {
	Metrics
	failed string // class of the last error of the current pass
}

// Acted implements eni.Observer.
func (p *passes) Acted(_ plan.Action, class cloud.Class, err error, _ time.Duration) {
	if err != nil {
		p.failed = class.String()
	}
}

// Collected implements eni.Observer.
func (p *passes) Collected(found eni.Collected) {
	for state, n := range found.ByState() {
		p.orphans.WithLabelValues(state).Set(float64(n))
	}
	p.collected.WithLabelValues().Add(float64(found.Deleted))
}

// Reconciled implements eni.Observer. The result of a pass is success, or the class of its last error.
func (p *passes) Reconciled(time.Duration) {
	p.reconciles.WithLabelValues(cmp.Or(p.failed, "success")).Inc()
	p.failed = ""
}
