package berthegress

import (
	"errors"
	"io"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/kernel/egressgateway"
	"github.com/berthnet/berth/internal/metric"
)

const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// The metrics.
var (
	notReady    = metric.New("berth_egress_not_ready", gauge, "1 while the gateway accepts no connections, by reason: "+clientsUnknown+", "+noFoU+" (the kernel lacks Foo over UDP), "+notForwarded+" (the pod's sysctls) or "+failing+".", "reason")
	ending      = metric.New("berth_egress_ending", gauge, "1 while the gateway terminates and serves its open connections.")
	clients     = metric.New("berth_egress_client_addresses", gauge, "Addresses of clients that the gateway serves.", "family")
	connections = metric.New("berth_egress_connections", gauge, "Connections that the kernel tracks in the pod.")
	limit       = metric.New("berth_egress_connections_limit", gauge, "Limit of tracked connections (net.netfilter.nf_conntrack_max of the node). Beyond it, packets of new connections are dropped.")
	refused     = metric.New("berth_egress_connections_refused_total", counter, "Packets that were dropped because the connection table was full.")
	packets     = metric.New("berth_egress_translated_packets_total", counter, "Packets from clients (out) and replies to them (in).", "direction", "family")
	bytes       = metric.New("berth_egress_translated_bytes_total", counter, "Bytes of these packets, with their IP headers but without the tunnels' headers.", "direction", "family")
	dropped     = metric.New("berth_egress_dropped_packets_total", counter, "Packets that were dropped. not-a-client: to the tunnel port, from an address that is not a client's or with another inner source; destination: from a client to an address outside the Egress's destinations; invalid: neither part of a known connection nor the first packet of a new one; not-forwarded: between clients, to the gateway itself, or from outside and not a reply.", "reason", "family")
	lost        = metric.New("berth_egress_dropped_bytes_total", counter, "Bytes of these packets.", "reason", "family")
	apiFailures = metric.New("berth_egress_api_failures_total", counter, "Failed requests to the Kubernetes API.")
	failures    = metric.New("berth_egress_apply_failures_total", counter, "Kernel updates that failed or omitted clients.")
	applies     = metric.New("berth_egress_apply_duration_seconds", histogram, "Duration of kernel updates.")

	families = []metric.Family{notReady, ending, clients, connections, limit, refused, packets, bytes, dropped, lost, apiFailures, failures, applies}
)

// metrics are the metrics that the program counts. The others are read from the kernel at each scrape.
type metrics struct {
	failures *prometheus.CounterVec
	applies  *prometheus.HistogramVec
}

func newMetrics() metrics {
	m := metrics{failures.Counter(), applies.Histogram(metric.CallBuckets)}
	m.failures.WithLabelValues()
	return m
}

func (m metrics) all() []prometheus.Collector { return []prometheus.Collector{m.failures, m.applies} }

func (m metrics) applied(took time.Duration, err error) {
	m.applies.WithLabelValues().Observe(took.Seconds())
	if err != nil {
		m.failures.WithLabelValues().Inc()
	}
}

// Describe implements prometheus.Collector.
func (a *agent) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range families {
		if f.Name != failures.Name && f.Name != applies.Name {
			ch <- f.Desc()
		}
	}
}

var familyNames = map[int]string{4: "ipv4", 6: "ipv6"}

// Collect implements prometheus.Collector. It leaves out metrics that cannot be read.
func (a *agent) Collect(ch chan<- prometheus.Metric) {
	word, _ := a.ready()
	for _, reason := range []string{clientsUnknown, noFoU, notForwarded, failing} {
		ch <- notReady.Value(one(word == reason), reason)
	}
	a.mu.Lock()
	served, ends := a.clients, a.state.ending
	a.mu.Unlock()
	ch <- ending.Value(one(ends))
	for f, name := range familyNames {
		ch <- clients.Value(float64(served[f]), name)
	}
	a.cache.mu.Lock()
	failed := a.cache.failed
	a.cache.mu.Unlock()
	ch <- total(apiFailures, failed)
	if err := errors.Join(a.collectConnections(ch), a.collectPackets(ch)); err != nil {
		a.log.Debug("metrics of the kernel are left out", "err", err)
	}
}

func (a *agent) collectConnections(ch chan<- prometheus.Metric) error {
	count, most, err := a.kernel.Connections()
	if err != nil {
		return err
	}
	ch <- connections.Value(float64(count))
	ch <- limit.Value(float64(most))
	n, err := a.kernel.ConnectionsRefused()
	if err != nil {
		return err
	}
	ch <- total(refused, n)
	return nil
}

func (a *agent) collectPackets(ch chan<- prometheus.Metric) error {
	c, err := a.kernel.Counters()
	if err != nil {
		return err
	}
	for f, name := range familyNames {
		for _, direction := range []string{egressgateway.Out, egressgateway.In} {
			n := c.Translated[direction][f]
			ch <- total(packets, n.Packets, direction, name)
			ch <- total(bytes, n.Bytes, direction, name)
		}
		for _, r := range egressgateway.Reasons {
			n := c.Dropped[r][f]
			ch <- total(dropped, n.Packets, string(r), name)
			ch <- total(lost, n.Bytes, string(r), name)
		}
	}
	return nil
}

func total(f metric.Family, n uint64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(f.Desc(), prometheus.CounterValue, float64(n), labels...)
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// WriteMetricsReference writes the page docs/reference/egress-metrics.md.
func WriteMetricsReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Metrics of berth-egress

<!-- Generated from internal/berthegress by "make generate". -->

Served at /metrics on --metrics-address of each gateway in the Prometheus text
format, together with the metrics of the Go runtime and the process. Counts of packets
and bytes continue when the program restarts in its pod.

`)
	metric.WriteTable(&b, families)
	_, err := io.WriteString(w, b.String())
	return err
}
