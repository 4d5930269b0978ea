package daemon

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/source"
)

var (
	famRequests = metric.New("berth_cni_requests_total", "counter", "Calls of the CNI plugin by verb, result (success or failure) and, of failures, the reason.", "verb", "result", "reason")
	famAdd      = metric.New("berth_add_duration_seconds", "histogram", "Time that ADD took in the daemon, waiting for an address included.")
	famDel      = metric.New("berth_del_duration_seconds", "histogram", "Time that DEL took in the daemon.")

	famAddresses = metric.New("berth_addresses", "gauge", "Addresses of this node by state: used, warm, cooling, not-ready or withdrawn.", "state")
	famOnNode    = metric.New("berth_addresses_on_node", "gauge", "Addresses for pods that somebody gave to a link of the node, by whose they are: pod (of a running pod, which nobody reaches) or nobody (kept from pods).", "held_by")
	famWaiting   = metric.New("berth_waiting_adds", "gauge", "ADDs that wait for an address.")
	famReap      = metric.New("berth_reap_pending", "gauge", "Links of released pods that the kernel still has to remove.")
	famCondition = metric.New("berth_condition", "gauge", "1 while the condition is healthy, else 0.", "type")
	famRepairs   = metric.New("berth_repairs_total", "counter", "Pieces of kernel state that someone else changed and berthd put back.")

	famNICRepairs = metric.New("berth_nic_repairs_total", "counter", "Pods with ports of a VPC whose NICs were found not to be as they should, by what was done (again: plugged again; changed: NICs of a running pod added, taken away, replaced or given other addresses) and result: success or error.", "done", "result")

	// EgressClients is the gauge of the egress part.
	EgressClients    = metric.New("berth_egress_clients", "gauge", "Pods of this node that reach networks outside by an Egress, by state: set-up, or changing (being set up as they are to be by now, or waiting to be tried again). None without egress.", "state")
	famEgressChanges = metric.New("berth_egress_changes_total", "counter", "Times that the egress of a running pod was set up to be as it should by now, or again after somebody changed it, by result: success or error.", "result")

	famPodEvents = metric.New("berth_pod_events_total", "counter", "Events of Pods, and counting them up, by result: written, refused (by the API server) or dropped (too many at once, or the API server away for minutes).", "result")

	famIPAM  = metric.New("berth_ipam_info", "gauge", "Always 1; the label tells where the node's addresses come from: eni (EC2, asked by this daemon), eni-operator (EC2, asked by the operator), pool (address pools) port (ports of VPCs, by the operator) or none (another network).", "ipam")
	famBuild = metric.New("berth_build_info", "gauge", "Always 1; the label tells the version.", "version")

	families = []metric.Family{
		famRequests, famAdd, famDel, famAddresses, famOnNode, famWaiting, famReap, famCondition, famRepairs, famNICRepairs, EgressClients, famEgressChanges, famPodEvents,
		famIPAM, famBuild,
	}
)

// WriteMetricsReference writes the metrics, and those of the sources, as the page
// docs/reference/metrics.md.
func WriteMetricsReference(w io.Writer, sources ...source.Reference) error {
	all, conditions := slices.Clone(families), slices.Clone(conditionDocs)
	for _, s := range sources {
		all, conditions = append(all, s.Families...), append(conditions, s.Conditions...)
	}
	var b strings.Builder
	b.WriteString(`# Metrics of berthd

<!-- Generated from internal/node/daemon by "make generate". -->

Served at /metrics on --metrics-address in the Prometheus text format, besides
the Go runtime's and the process's own. Durations are in seconds.

`)
	metric.WriteTable(&b, all)
	b.WriteString(`
Conditions of berth_condition:

| type | healthy while |
|---|---|
`)
	for _, c := range conditions {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c[0], c[1])
	}
	_, err := io.WriteString(w, b.String())
	return err
}
