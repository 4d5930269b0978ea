package daemon

import (
	"fmt"
	"io"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// family is one metric: what registers it and what documents it.
type family struct {
	name, kind, help string
	labels           []string
}

var (
	famRequests = family{"berth_cni_requests_total", "counter", "Calls of the CNI plugin by verb, result (success or failure) and, of failures, the reason.", []string{"verb", "result", "reason"}}
	famAdd      = family{"berth_add_duration_seconds", "histogram", "Time that ADD took in the daemon, waiting for an address included.", nil}
	famDel      = family{"berth_del_duration_seconds", "histogram", "Time that DEL took in the daemon.", nil}

	famAddresses = family{"berth_addresses", "gauge", "Addresses of this node by state: used, warm, cooling, not-ready or withdrawn.", []string{"state"}}
	famENIs      = family{"berth_enis", "gauge", "ENIs of this node that carry pods.", nil}
	famWaiting   = family{"berth_waiting_adds", "gauge", "ADDs that wait for an address.", nil}
	famReap      = family{"berth_reap_pending", "gauge", "Links of released pods that the kernel still has to remove.", nil}
	famCondition = family{"berth_condition", "gauge", "1 while the condition is healthy, else 0.", []string{"type"}}
	famRepairs   = family{"berth_repairs_total", "counter", "Pieces of kernel state that someone else changed and berthd put back.", nil}

	famCalls      = family{"berth_ec2_calls_total", "counter", "Calls to EC2 by operation and code: EC2's error code, or OK.", []string{"operation", "code"}}
	famCallTime   = family{"berth_ec2_call_duration_seconds", "histogram", "Time that calls to EC2 took, without the client's limiter.", []string{"operation"}}
	famLimiter    = family{"berth_ec2_limiter_wait_seconds", "histogram", "Time that the client's limiter held calls to EC2 back.", []string{"operation"}}
	famReconciles = family{"berth_reconciles_total", "counter", "Passes of the ENI reconciler by result: success, or the class of the last error.", []string{"result"}}
	famReports    = family{"berth_nodenetwork_reports_total", "counter", "Reports on this node's addresses to its NodeNetwork object, in operator mode, by result: success, conflict (the object had changed; another report follows) or error.", []string{"result"}}
	famReportTime = family{"berth_nodenetwork_report_duration_seconds", "histogram", "Time that these reports took.", nil}
	famIPAM       = family{"berth_ipam_info", "gauge", "Always 1; the label tells who gets the node's addresses: eni (this daemon) or eni-operator.", []string{"ipam"}}
	famBuild      = family{"berth_build_info", "gauge", "Always 1; the label tells the version.", []string{"version"}}

	families = []family{
		famRequests, famAdd, famDel, famAddresses, famENIs, famWaiting, famReap, famCondition, famRepairs,
		famCalls, famCallTime, famLimiter, famReconciles, famReports, famReportTime, famIPAM, famBuild,
	}
)

func (f family) counter() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.name, Help: f.help}, f.labels)
}

func (f family) histogram(buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: f.name, Help: f.help, Buckets: buckets}, f.labels)
}

func (f family) desc() *prometheus.Desc {
	return prometheus.NewDesc(f.name, f.help, f.labels, nil)
}

// WriteMetricsReference writes the metrics as the page docs/reference/metrics.md.
func WriteMetricsReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Metrics of berthd

<!-- Generated from internal/daemon by "make generate". -->

Served at /metrics on --metrics-address in the Prometheus text format, besides
the Go runtime's and the process's own. Durations are in seconds.

| metric | type | labels | meaning |
|---|---|---|---|
`)
	for _, f := range families {
		labels := strings.Join(f.labels, ", ")
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, labels, f.help)
	}
	b.WriteString(`
Conditions of berth_condition:

| type | healthy while |
|---|---|
`)
	for _, c := range conditionDocs {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c[0], c[1])
	}
	_, err := io.WriteString(w, b.String())
	return err
}
