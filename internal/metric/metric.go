// Package metric describes each Prometheus metric once, for the program that
// registers it and for the page that documents it.
package metric

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// CallBuckets range, in seconds, from less than a netlink call to the longest wait for an address.
var CallBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// WaitBuckets are for waits of pods or nodes for addresses, in seconds.
var WaitBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600}

// Results are the values of Result.
var Results = []string{"success", "error"}

// Result is a label value for an outcome.
func Result(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

// Family is one metric.
type Family struct {
	Name, Kind, Help string
	Labels           []string
}

// New describes a metric; the kind is Prometheus's: counter, gauge or histogram.
func New(name, kind, help string, labels ...string) Family {
	return Family{Name: name, Kind: kind, Help: help, Labels: labels}
}

// Counter makes the metric. The caller registers it.
func (f Family) Counter() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Name, Help: f.Help}, f.Labels)
}

// Gauge makes the metric. The caller registers it.
func (f Family) Gauge() *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: f.Name, Help: f.Help}, f.Labels)
}

// Histogram makes the metric. The caller registers it.
func (f Family) Histogram(buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: f.Name, Help: f.Help, Buckets: buckets}, f.Labels)
}

// Desc is for a prometheus.Collector that makes the values itself.
func (f Family) Desc() *prometheus.Desc {
	return prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
}

// Value is one value of a gauge, for a prometheus.Collector that makes the values itself.
func (f Family) Value(v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(f.Desc(), prometheus.GaugeValue, v, labels...)
}

// WriteTable writes the families as a Markdown table.
func WriteTable(b *strings.Builder, families []Family) {
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, f := range families {
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", f.Name, f.Kind, strings.Join(f.Labels, ", "), f.Help)
	}
}

// Collector exports gauges of the given families, which are read on each scrape: read calls emit for each value,
// and must not block.
func Collector(read func(emit func(f Family, v float64, labels ...string)), families ...Family) prometheus.Collector {
	return collector{read, families}
}

type collector struct {
	read     func(emit func(f Family, v float64, labels ...string))
	families []Family
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range c.families {
		ch <- f.Desc()
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.read(func(f Family, v float64, labels ...string) { ch <- f.Value(v, labels...) })
}
